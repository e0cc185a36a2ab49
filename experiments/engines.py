"""Certificates of engines: transformers, llama.cpp, OpenVINO GenAI and CTranslate2 on the weights of `pico`.

    python -m pip install -c constraints.txt '.[engines]'
    python experiments/engines.py
    python experiments/engines.py --only llama.cpp --samples 8 --home runs/engines --out runs/engines.json

The weights are converted into --home. Each engine decodes plainly, with a draft model and by prompt
lookup where it can, at two settings, and each run gets a certificate from `certify_engine`: score tests
of every token, reported log-probabilities, copies, greedy ids. Texts are stored as they are drawn, and
rows of --out as they are done; the same command goes on after an interruption. Rows of other weights,
versions or sizes are made anew. Engines that are not installed are left out. A row of --out is a certificate.
"""

import argparse
import json
import os
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from operator import itemgetter
from pathlib import Path

HERE = Path(__file__).resolve().parent
if (HERE.parent / 'decodelab/__init__.py').exists():
    sys.path.insert(0, str(HERE.parent))  # a checkout need not be installed

import torch  # noqa: E402

from decodelab import TransformersGenerate, load  # noqa: E402
from decodelab.core.files import write_atomic  # noqa: E402
from decodelab.engines import (  # noqa: E402
    CTranslate2Engine,
    LlamaCppEngine,
    OpenVINOEngine,
    certify_engine,
    to_ctranslate2,
    to_gguf,
    to_openvino,
)
from decodelab.evaluate.bench import fingerprint  # noqa: E402
from decodelab.evaluate.jobs import machine_info  # noqa: E402

LOOKAHEAD = 4
WHERE = 'engine', 'version', 'mode', 'settings'
SAME = 'weights', 'samples', 'max_new_tokens', 'torch', 'transformers'
SETTINGS = {
    'T = 1': dict(temperature=1.0),
    'T = 0.8, top-k 40, top-p 0.9': dict(temperature=0.8, top_k=40, top_p=0.9),
}
PACKAGES = {
    'transformers': 'transformers',
    'llama.cpp': 'llama-cpp-python',
    'OpenVINO GenAI': 'openvino-genai',
    'CTranslate2': 'ctranslate2',
}
MODULES = {
    'transformers': 'transformers',
    'llama.cpp': 'llama_cpp',
    'OpenVINO GenAI': 'openvino_genai',
    'CTranslate2': 'ctranslate2',
}
CONSTANT = dict(
    num_assistant_tokens=LOOKAHEAD,
    num_assistant_tokens_schedule='constant',
    assistant_confidence_threshold=0.0,
)


def transformers_engines(settings: dict, draft) -> dict:
    "Modes of transformers' generate."
    sampling = dict(do_sample=True) | dict(top_k=0) | settings
    return {
        'plain': TransformersGenerate(**sampling),
        'draft model': TransformersGenerate(draft, **sampling, **CONSTANT),
        'prompt lookup': TransformersGenerate(**sampling, prompt_lookup_num_tokens=LOOKAHEAD),
    }


def llama_engines(settings: dict, draft) -> dict:
    "Modes of llama.cpp, on GGUF files of the working folder."
    options = dict(lookahead=LOOKAHEAD, float32=True, log_probs=True) | settings
    return {
        'plain': LlamaCppEngine('pico.gguf', **options),
        'plain, 16-bit cache': LlamaCppEngine('pico.gguf', **options | dict(float32=False)),
        'draft model': LlamaCppEngine('pico.gguf', 'pico-draft.gguf', **options),
        'prompt lookup': LlamaCppEngine('pico.gguf', lookup=True, **options),
    }


def openvino_engines(settings: dict, draft) -> dict:
    "Modes of OpenVINO GenAI, on folders of the working folder."
    options = dict(lookahead=LOOKAHEAD, float32=True) | settings
    return {
        'plain': OpenVINOEngine('pico-openvino', **options),
        'plain, 8-bit cache': OpenVINOEngine('pico-openvino', **options | dict(float32=False)),
        'draft model': OpenVINOEngine('pico-openvino', 'pico-draft-openvino', **options),
        'prompt lookup': OpenVINOEngine('pico-openvino', lookup=True, **options),
    }


def ctranslate2_engines(settings: dict, draft) -> dict:
    "CTranslate2, which does not speculate."
    return {'plain': CTranslate2Engine('pico-ctranslate2', log_probs=True, **settings)}


ENGINES = {
    'transformers': transformers_engines,
    'llama.cpp': llama_engines,
    'OpenVINO GenAI': openvino_engines,
    'CTranslate2': ctranslate2_engines,
}


def convert(models, names: list[str]):
    "Write the weights of the models into the working folder, for the engines that need it."
    for lm in models:
        if 'llama.cpp' in names and not Path(f'{lm.name}.gguf').exists():
            to_gguf(lm, f'{lm.name}.gguf')
        if 'OpenVINO GenAI' in names and not Path(f'{lm.name}-openvino').exists():
            to_openvino(lm, f'{lm.name}-openvino')
    if 'CTranslate2' in names and not Path(f'{models[0].name}-ctranslate2').exists():
        to_ctranslate2(models[0], f'{models[0].name}-ctranslate2')


def installed_version(name: str) -> str | None:
    "The version of an engine's package; None if it is not installed."
    if find_spec(MODULES[name]) is None:
        return None
    try:
        return version(PACKAGES[name])
    except PackageNotFoundError:
        return 'unknown'


def certified_row(engine, lm, draft, where: dict, sizes: dict) -> dict:
    "The certificate of one engine in one mode, as a row."
    folder = '_'.join(where[k] for k in ('engine', 'mode', 'settings')).replace(' ', '-')
    start = time.perf_counter()
    certificate = certify_engine(
        engine,
        lm,
        **sizes,
        draft=draft if where['mode'] == 'draft model' else None,
        output_dir=Path('texts') / folder,
        progress=False,
        show=None,
    )
    seconds = round(time.perf_counter() - start, 1)
    date = datetime.now(UTC).isoformat(timespec='seconds')
    return where | dict(
        repr=repr(engine), date=date, seconds=seconds, certificate=certificate.to_dict()
    )


def stored_rows(path: Path, about: dict) -> dict[tuple, dict]:
    "Rows of an earlier run with these weights and sizes, by engine, version, mode and settings."
    if not path.exists():
        return {}
    stored = json.loads(path.read_text())
    if any(stored['about'].get(name) != about[name] for name in SAME):
        return {}
    return {itemgetter(*WHERE)(row): row for row in stored['rows']}


def read_arguments(argv=None):
    "The arguments of the command line."
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--only', action='append', choices=list(ENGINES), help='this engine')
    parser.add_argument('--samples', type=int, default=24, help='texts of each of 8 prompts')
    parser.add_argument('--new', type=int, default=40, help='tokens of a text')
    parser.add_argument('--home', type=Path, default=Path('runs/engines'), help='working folder')
    parser.add_argument('--out', type=Path, default=HERE / 'engine_certificates.json')
    return parser.parse_args(argv)


def main(argv=None):
    "Convert, draw, certify, store."
    args = read_arguments(argv)
    out = args.out.resolve()
    args.home.mkdir(parents=True, exist_ok=True)
    os.chdir(args.home)
    torch.set_num_threads(1)
    versions = {name: installed_version(name) for name in ENGINES}
    lm, draft = load('pico', device='cpu'), load('pico-draft', device='cpu')
    sizes = dict(samples=args.samples, max_new_tokens=args.new)
    weights = {model.name: fingerprint(model.model) for model in (lm, draft)}
    about = machine_info('cpu') | dict(weights=weights) | sizes
    rows = stored_rows(out, about)
    names = [n for n in args.only or ENGINES if versions[n] is not None]
    convert([lm, draft], names)
    for name, title in product(names, SETTINGS):
        for mode, engine in ENGINES[name](SETTINGS[title], draft).items():
            where = dict(engine=name, version=versions[name], mode=mode, settings=title)
            key = tuple(where.values())
            if key not in rows:
                rows[key] = certified_row(engine, lm, draft, where, sizes)
                verdict, seconds = rows[key]['certificate']['verdict'], rows[key]['seconds']
                print(f'{name}, {mode}, {title}: {verdict}, {seconds} s', flush=True)
                ordered = sorted(rows.values(), key=lambda row: list(ENGINES).index(row['engine']))
                write_atomic(out, json.dumps(dict(about=about, rows=ordered), indent=1) + '\n')


if __name__ == '__main__':
    main()
