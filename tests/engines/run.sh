#!/bin/sh
# Tests and notebooks of engines where all of them are installed: pip install -c constraints.txt -e '.[dev,engines]'
# A test that is skipped elsewhere fails here if its engine is missing. Exits 1 if any stage failed.
cd "$(dirname "$0")/../.." || exit 1
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 DECODELAB_ENGINES=1
failed=
python -c 'import ctranslate2, gguf, llama_cpp, openvino_genai' || failed="$failed engines"
nbdev_test --path nbs/13_engines --n_workers 2 --timing || failed="$failed notebooks"
python -m pytest -q tests/engines || failed="$failed pytest"
if [ -n "$failed" ]; then echo "failed:$failed" >&2; exit 1; fi
