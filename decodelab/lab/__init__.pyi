# The names of this part, imported when they are first used; also what editors and type checkers read.
from .experiment import Experiment as Experiment
from .requirements import experiments as experiments
from .requirements import needs_of as needs_of
from .runner import run_experiment as run_experiment
from .runner import draw_experiment as draw_experiment
from .run_report import compare_runs as compare_runs
from .run_report import claims_table as claims_table
from .distributed import launch as launch
from .distributed import scaling as scaling
