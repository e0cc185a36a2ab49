"Forks of a process that has imported everything: what `preloaded.start` starts."

import preloaded

CODE = """
import resource, sys
print('torch' in sys.modules, 'transformers.models.llama.modeling_llama' in sys.modules)
import torch, transformers, decodelab.lab.cli
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime < 1)
"""


def test_a_fork_has_imported_everything():
    process = preloaded.start(['-c', CODE])
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.split() == ['True'] * 3
