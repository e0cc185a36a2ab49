# The names of this part, imported when they are first used; also what editors and type checkers read.
from .strategies import explain_config as explain_config
from .custom_generate import as_custom_generate as as_custom_generate
from .custom_generate import generate_with as generate_with
from .custom_generate_load import load_custom_generate as load_custom_generate
from .custom_generate_load import CustomGenerate as CustomGenerate
from .custom_generate_export import export_custom_generate as export_custom_generate
from .generation_config import to_generation_config as to_generation_config
from .generation_config import from_generation_config as from_generation_config
from .config_files import save_strategy as save_strategy
from .config_files import load_strategy as load_strategy
from .config_files import push_strategy as push_strategy
from .config_files import strategy_file as strategy_file
from .pipeline import with_strategy as with_strategy
