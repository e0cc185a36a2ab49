# The names of this part, imported when they are first used; also what editors and type checkers read.
from .experiment import Experiment as Experiment
from .requirements import experiments as experiments
from .runner import run_experiment as run_experiment
from .runner import render_experiment as render_experiment
from .run_report import compare_runs as compare_runs
from .distributed import launch as launch
from .distributed import scaling as scaling
from .explorer import Explorer as Explorer
from .explorer import ChoiceField as ChoiceField
from .explorer import FlagField as FlagField
from .explorer import IntField as IntField
from .explorer import NumberField as NumberField
from .explorer import StateField as StateField
from .explorer import TextField as TextField
from .panel import Panel as Panel
from .decoding_explorer import explore as explore
