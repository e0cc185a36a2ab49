"A command whose reader has read enough ends in silence."

import os
import subprocess
import sys


def test_a_closed_pipe_ends_it_without_a_message():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, '-m', 'decodelab', 'strategies']
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ''
