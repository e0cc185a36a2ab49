"`preloaded.start` forks a process that has imported everything."

import preloaded

CODE = """
import sys
for name in ('torch', 'transformers.models.llama.modeling_llama', 'decodelab.cli.main'):
    print(name in sys.modules)
"""


def test_a_fork_has_imported_everything():
    process = preloaded.start(['-c', CODE])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split() == ['True'] * 3
