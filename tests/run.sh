#!/bin/sh
# Everything that is checked, in the order that explains a failure best. Ends with pytest's count; exits 1 if any stage failed.
cd "$(dirname "$0")/.." || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 # two notebooks at a time on two cores; nothing here needs a network
export TORCHINDUCTOR_COMPILE_THREADS=1 # so one process compiles its graphs itself
failed=
python tools/drift.py || failed="$failed drift"
ruff check --quiet . || failed="$failed ruff"
ruff format --quiet --check nbs experiments tests tools setup.py || failed="$failed format"
python tools/notebooks.py || failed="$failed notebooks"
DECODELAB_SCALE=pico python tools/experiments.py || failed="$failed experiments"
python -m pytest -q -n 2 --dist worksteal --junitxml=runs/tests.xml || failed="$failed pytest"
if [ -n "$failed" ]; then echo "failed:$failed" >&2; exit 1; fi
