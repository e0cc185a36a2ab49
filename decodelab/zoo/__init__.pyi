# The names of this part, imported when they are first used; also what editors and type checkers read.
from .corpus import builtin_prompts as builtin_prompts
from .number_words import english as english
from .number_words import german as german
from .signals import morse as morse
from .signals import dtmf as dtmf
from .signals import noisy as noisy
from .speech_model import error_rate as error_rate
