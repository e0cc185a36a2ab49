"`python -m decodelab` is the command `decodelab`; launchers that start modules need it."

import sys

from decodelab.lab.cli import main

sys.exit(main())
