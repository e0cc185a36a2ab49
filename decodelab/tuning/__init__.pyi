# The names of this part, imported when they are first used; also what editors and type checkers read.
from .replay import DraftTable as DraftTable
from .replay import OracleLookahead as OracleLookahead
from .replay import predicted_speedup as predicted_speedup
from .cost_model import measure_costs as measure_costs
from .cost_model import verification_cost_curve as verification_cost_curve
from .cost_model import predict_speedups as predict_speedups
from .round_breakdown import round_parts as round_parts
from .round_breakdown import roofline as roofline
from .round_breakdown import bytes_per_token as bytes_per_token
from .diagnose import diagnose_run as diagnose_run
from .classifier import ClassifierLookahead as ClassifierLookahead
from .search import tune_lookahead as tune_lookahead
from .search import TuningResult as TuningResult
