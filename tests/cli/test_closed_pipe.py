"A command whose reader has read enough ends in silence."

import os
import subprocess
import sys


def test_nothing_is_said_about_a_closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, '-m', 'decodelab', 'strategies']
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ''
