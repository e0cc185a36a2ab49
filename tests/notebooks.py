"""`nbdev_test` for all notebooks, two at a time, in processes that have imported everything before.

`nbdev_test --path NOTEBOOK` runs one alone.
"""

from nbdev.test import nbdev_test

import preloaded

if __name__ == '__main__':
    preloaded.import_all()
    nbdev_test(n_workers=2, timing=True)
