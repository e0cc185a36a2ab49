# The names of this part, imported when they are first used; also what editors and type checkers read.
from .trace import Step as Step
from .trace import Trace as Trace
from .driver import Request as Request
from .driver import Rng as Rng
from .driver import Stop as Stop
from .counter import CounterRng as CounterRng
from .driver import decode as decode
from .plot import use_figure_style as use_figure_style
from .plot import plot_tokens as plot_tokens
from .plot import plot_acceptance as plot_acceptance
from .plot import plot_speed as plot_speed
from .plot import save_html as save_html
from .driver import Strategy as Strategy
from .component import Component as Component
