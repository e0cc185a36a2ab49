# The names of this part, imported when they are first used; also what editors and type checkers read.
from .strategy_names import make_strategy as make_strategy
from .harness import HarnessLM as HarnessLM
