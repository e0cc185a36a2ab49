# The names of this part, imported when they are first used; also what editors and type checkers read.
from .session import LM as LM
from .session import Session as Session
from .session import UncachedSession as UncachedSession
from .past_key_values import CachedPrompt as CachedPrompt
from .session import load as load
from .loading import embedded_models as embedded_models
from .session import check_same_tokenizer as check_same_tokenizer
from .batching import decode_batch as decode_batch
from .batching import Batch as Batch
from .audio import audio_features as audio_features
from .audio import read_wav as read_wav
from .audio import read_sound as read_sound
from .shared_prompt import SharedPrompt as SharedPrompt
from .shared_prompt import run_side_by_side as run_side_by_side
