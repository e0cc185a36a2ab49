# The names of this part, imported when they are first used; also what editors and type checkers read.
from .session import LM as LM
from .session import Session as Session
from .session import load as load
from .session import pair as pair
from .batching import decode_batch as decode_batch
from .batching import Batch as Batch
from .audio import hear as hear
from .audio import read_wav as read_wav
