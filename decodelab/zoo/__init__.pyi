# The names of this part, imported when they are first used; also what editors and type checkers read.
from .corpus import builtin_prompts as builtin_prompts
from .number_words import english_words as english_words
from .number_words import german_words as german_words
from .signals import morse as morse
from .signals import dtmf as dtmf
from .signals import add_noise as add_noise
from .speech_model import word_error_rate as word_error_rate
