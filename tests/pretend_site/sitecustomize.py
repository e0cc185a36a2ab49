"""Every Python process that begins with this folder on PYTHONPATH has the pretend accelerator until it ends.

Then it appends its command and the traffic of the device to the file that PRETEND_TRAFFIC names: a line of JSON.
"""

import atexit
import json
import os
import sys
from contextlib import ExitStack

from decodelab.evaluate.pretend import count_traffic, pretend_device

blocks = ExitStack()
blocks.enter_context(pretend_device())
traffic = blocks.enter_context(count_traffic())


def report():
    "Append what was counted."
    with open(os.environ['PRETEND_TRAFFIC'], 'a') as file:
        file.write(json.dumps(dict(command=sys.argv, traffic=traffic)) + '\n')


atexit.register(report)
