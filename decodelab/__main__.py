"`python -m decodelab` is the command `decodelab`; launchers that start modules need it."

import sys

from decodelab.cli.main import main

sys.exit(main())
