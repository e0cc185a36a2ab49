# The names of this part, imported when they are first used; also what editors and type checkers read.
from .experiment import Experiment as Experiment
from .requirements import experiments as experiments
from .runner import run_experiment as run_experiment
from .runner import render_experiment as render_experiment
from .run_report import compare_runs as compare_runs
from .fingerprint import experiment_fingerprint as experiment_fingerprint
from .freshness import stored_freshness as stored_freshness
from .validate import folder_problems as folder_problems
from .distributed import launch as launch
from .distributed import scaling as scaling
from .exercise import your_turn as your_turn
