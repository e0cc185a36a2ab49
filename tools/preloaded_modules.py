"What the server of forks imports before the first of them."

from preloaded import import_all

import_all()
