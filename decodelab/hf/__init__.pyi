# The names of this part, imported when they are first used; also what editors and type checkers read.
from .strategies import explain_config as explain_config
from .custom_generate import recipe as recipe
from .custom_generate import generate_with as generate_with
from .custom_generate_load import load_recipe as load_recipe
from .custom_generate_load import LoadedRecipe as LoadedRecipe
from .custom_generate_export import export_recipe as export_recipe
from .generation_config import to_generation_config as to_generation_config
from .generation_config import from_generation_config as from_generation_config
from .config_files import save_pretrained as save_pretrained
from .config_files import from_pretrained as from_pretrained
from .config_files import push_to_hub as push_to_hub
from .config_files import strategy_file as strategy_file
from .pipeline import with_strategy as with_strategy
