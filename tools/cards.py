"""Writes the cards of the embedded models and of their corpus: README.md in each folder of weights, and CORPUS.md.

What can be counted is read from the files beside a card (weights, configuration, log, calls of the training), so a
card is true again after `python tools/cards.py`; the tests compare. What a model is for, and what it cannot do, is
written here.
"""

import csv
import json
import math
import re
import struct
from collections import Counter
from dataclasses import dataclass

import nbformat
from repo import ROOT

WEIGHTS = ROOT / 'decodelab' / 'weights'
LICENCES = ROOT / 'docs' / 'corpus_licences.csv'
SITE = 'https://github.com/decodelab/decodelab/blob/main'
CORPUS_NOTEBOOK = 'nbs/05_zoo/01_corpus.ipynb'
TRAINING = 'nbs/05_zoo/02_training.ipynb'
FURTHER = 'nbs/05_zoo/04_pico.ipynb'
OWN_TEXTS = 'nbs/05_zoo/11_own_text.ipynb'
HEADS = 'nbs/08_drafters/19_train_heads.ipynb'
BIOGRAPHIES = 'nbs/05_zoo/07_biographies_model.ipynb'
TRANSLATION = 'nbs/05_zoo/08_translation_model.ipynb'
SPEECH = 'nbs/05_zoo/10_speech_model.ipynb'


@dataclass
class Card:
    "What is written by hand about a model."

    title: str
    summary: str
    use: str  # Python
    data: str
    intended: str
    limits: str
    notebook: str
    task: str  # of the Hub's list
    measure: str  # the column of the log that is the score
    meaning: str  # of that column
    base: str = ''  # the model that it drafts for, or belongs to


CORPUS_TEXT = (
    'Python source text: the standard library, and the packages that were installed on the training machine. '
    '[The data card]({corpus}) names each with its licence, and what was left out. The first run read a smaller corpus of the same '
    'kind (ten packages, 43 MB).'
)
OWN_TEXT = (
    ' Half of the text is what the target itself generates when it continues windows of the corpus.'
)
CONTINUATIONS = ' From the third run on it is nothing but continuations by the target, three of four of them greedy.'
SMALL = (
    'It is small on purpose: one process on one CPU thread runs it, and no test needs a network. '
)
NOT_FOR = (
    'Not for writing code or text that anyone relies on, and not as a baseline of quality. Nothing about speed or '
    'acceptance on large models follows from it without a measurement there.'
)
PYTHON_ONLY = 'Python source with English comments and docstrings; any other text is read byte by byte and badly. '
NO_SAFETY = 'It is not tuned to follow instructions and has no filter of any kind.'

DECODE = """from decodelab import Greedy, decode, load

decode(load('{name}'), 'def fibonacci(n):', Greedy(), max_new_tokens=32)
"""
ASSISTED = """from decodelab import AssistantDrafter, Speculative, decode, load

strategy = Speculative(AssistantDrafter(load('{name}')))
decode(load('{base}'), '{prompt}', strategy, max_new_tokens=32)
"""
OTHER_TOKENIZER = """from decodelab import Speculative, UniversalDrafter, decode, load

decode(load('pico'), 'def fibonacci(n):', Speculative(UniversalDrafter(load('{name}'))), max_new_tokens=32)
"""
WITH_HEADS = """from decodelab import {drafter}, Speculative, decode, load
from decodelab.drafters import load_heads

lm = load('{base}')
decode(lm, 'def fibonacci(n):', Speculative({drafter}(load_heads('{name}'))), max_new_tokens=32)
"""
TRANSLATE = """from decodelab import Greedy, decode, load

decode(load('{name}'), 'three hundred and forty-two', Greedy(), max_new_tokens=32)
"""
TRANSCRIBE = """from decodelab import Greedy, load, transcribe
from decodelab.zoo.signals import morse

transcribe(load('{name}'), morse('CQ DE').wave, Greedy())
"""

TRANSCRIBE_ASSISTED = """from decodelab import AssistantDrafter, Speculative, load, transcribe
from decodelab.zoo.signals import morse

strategy = Speculative(AssistantDrafter(load('{name}')))
transcribe(load('{base}'), morse('CQ DE').wave, strategy)
"""

CARDS = {
    'pico': Card(
        'A language model of Python source',
        'Seven million parameters that ship with decodelab, so that tests, notebooks and first steps need no download. '
        'Its early layers were trained to predict tokens, too, for early exit (LayerSkip, arXiv 2404.16710).',
        DECODE,
        CORPUS_TEXT,
        SMALL
        + 'For demonstrations, tests and measurements of decoding: it stands for the large model of a pair.',
        'Its greedy texts repeat themselves: {repeats} of 12 continuations of 128 tokens have a line three times. '
        'The context is 1,024 tokens. ' + PYTHON_ONLY,
        FURTHER,
        'text-generation',
        'held_out_bpb',
        'bits per byte on held-out modules of the standard library',
    ),
    'pico-draft': Card(
        'A draft model of pico',
        'A million parameters with the tokenizer of `pico`, distilled from it, for speculative decoding.',
        ASSISTED,
        CORPUS_TEXT + OWN_TEXT + CONTINUATIONS,
        SMALL + 'For speculative decoding with `pico`, and for experiments about drafts.',
        'By itself it writes much worse than `pico`. ' + PYTHON_ONLY,
        OWN_TEXTS,
        'text-generation',
        'held_out_bpb',
        'bits per byte on held-out modules of the standard library',
        'pico',
    ),
    'pico-alt': Card(
        'A draft model with another tokenizer',
        'A third of a million parameters and a vocabulary of its own, for drafting across tokenizers.',
        OTHER_TOKENIZER,
        CORPUS_TEXT + OWN_TEXT,
        SMALL
        + 'For universal assisted generation with `pico`, whose vocabulary it does not share.',
        'By itself it writes hardly anything that parses. ' + PYTHON_ONLY,
        FURTHER,
        'text-generation',
        'held_out_bpb',
        'bits per byte on held-out modules of the standard library',
        'pico',
    ),
    'pico-eagle': Card(
        'An EAGLE-3 head of pico',
        'One transformer layer that reads three layers of `pico` and drafts for it (arXiv 2503.01840).',
        WITH_HEADS,
        CORPUS_TEXT.replace('first run', 'first run of pico') + OWN_TEXT,
        SMALL + 'For EAGLE drafts of `pico`, chains and trees.',
        'It belongs to the weights of `pico` that ship with it and drafts nonsense for any others.',
        HEADS,
        'text-generation',
        'agreement',
        'fraction of held-out positions at which the k-th guess is the choice of `pico`',
        'pico',
    ),
    'pico-medusa': Card(
        'Medusa heads of pico',
        'Four heads of one block each on the last state of `pico` (arXiv 2401.10774).',
        WITH_HEADS,
        CORPUS_TEXT.replace('first run', 'first run of pico') + OWN_TEXT,
        SMALL + 'For Medusa drafts of `pico`, chains and trees.',
        'It belongs to the weights of `pico` that ship with it. Its heads do not see the tokens between, so far '
        'guesses are poor.',
        HEADS,
        'text-generation',
        'agreement',
        'fraction of held-out positions at which the k-th guess is the choice of `pico`',
        'pico',
    ),
    'pico-bio': Card(
        'A model of invented biographies',
        'Two and a half million parameters in twelve narrow layers, trained on true sentences about two thousand '
        'invented people, so that every answer can be compared with the truth.',
        DECODE.replace('def fibonacci(n):', 'The birthplace of Kasin Guldent was'),
        'Biographies made by `decodelab.zoo.biographies` from seeded syllables and templates: no person is real and '
        'no text is from anywhere else. One in eight people has 256 biographies, one in eight none.',
        'For experiments about what a decoding strategy does to facts that a model knows well, half, or not at all '
        '(DoLa, arXiv 2309.03883), with known answers instead of a judge.',
        'The world is small and tidy: every sentence is true and a fact is one word or two, so a gain here need not '
        'hold for a large model. About people without biographies it invents answers, two thirds of them true of a '
        'person with the same last name.',
        BIOGRAPHIES,
        'text-generation',
        'exact',
        'fraction of questions answered exactly, by the number of biographies of the person',
    ),
    'pico-seq2seq': Card(
        'A translation model of numbers and dates',
        'A T5 of a million parameters between English and German words for numbers and dates.',
        TRANSLATE,
        'Pairs made by `decodelab.zoo.number_words` from seeded numbers and dates; which are held out depends on '
        'their hash alone, in both directions.',
        'For experiments about encoder–decoders: beam search, shared encoders, exact answers.',
        'It turns any other sentence into a number. Numbers from a million on and years before 1100 or after 2099 '
        'are not in its data. Of the English dates 92 % were right: years whose parts end alike '
        '(*sixteen fourteen*) come out wrong.',
        TRANSLATION,
        'translation',
        'exact',
        'fraction of held-out pairs translated exactly',
    ),
    'pico-seq2seq-draft': Card(
        'A draft model of pico-seq2seq',
        'The frozen encoder of `pico-seq2seq` with a decoder of one layer, as Distil-Whisper is made '
        '(arXiv 2311.00430).',
        ASSISTED,
        'The pairs of `pico-seq2seq`.',
        'For speculative decoding with `pico-seq2seq`: one pass of the encoder serves both.',
        'Those of `pico-seq2seq`.',
        TRANSLATION,
        'translation',
        'exact',
        'fraction of held-out pairs translated exactly',
        'pico-seq2seq',
    ),
    'pico-whisper': Card(
        'A speech model of Morse code and telephone keys',
        'All parts of Whisper (arXiv 2212.04356) in 700,000 parameters.',
        TRANSCRIBE,
        'Recordings of at most four seconds made by `decodelab.zoo.signals` from seeded formulas: two thirds Morse '
        "code at 18 to 32 words a minute, one third telephone keys, with white noise down to 0 dB. No one's voice "
        'is in them.',
        'For experiments about decoding speech: transcripts and the time of every character are exact.',
        'It knows nothing of speech, voices, rooms or accents. Errors rise quickly outside 18 to 32 words a minute '
        'and below 0 dB.',
        SPEECH,
        'automatic-speech-recognition',
        'wer',
        'word error rate on 100 held-out recordings without noise',
    ),
    'pico-whisper-draft': Card(
        'A draft model of pico-whisper',
        'The frozen encoder of `pico-whisper` with a decoder of one layer.',
        TRANSCRIBE_ASSISTED,
        'The recordings of `pico-whisper`, fewer of them.',
        'For speculative decoding with `pico-whisper`: one pass of the encoder serves both.',
        'Those of `pico-whisper`.',
        SPEECH,
        'automatic-speech-recognition',
        'wer',
        'word error rate on 100 held-out recordings without noise',
        'pico-whisper',
    ),
}


# What the files beside a card show


def read_json(path):
    return json.loads(path.read_text(encoding='utf-8'))


def read_log(name):
    "The lines of a training log; the first run is run 1."
    lines = (WEIGHTS / name / 'log.jsonl').read_text(encoding='utf-8').splitlines()
    return [dict(run=1) | json.loads(line) for line in lines]


def tensors(name):
    "`(number of weights, their types, bytes of the file)` from the head of the safetensors file."
    path = next((WEIGHTS / name).glob('*.safetensors'))
    with path.open('rb') as file:
        (length,) = struct.unpack('<Q', file.read(8))
        heads = json.loads(file.read(length))
    heads.pop('__metadata__', None)
    types = sorted({head['dtype'] for head in heads.values()})
    return sum(math.prod(head['shape']) for head in heads.values()), types, path.stat().st_size


def architecture(name):
    "The architecture in a line, from the configuration."
    folder = WEIGHTS / name
    if (folder / 'heads.json').exists():
        heads = read_json(folder / 'heads.json')
        layers = ', '.join(map(str, heads['layers']))
        return f'{heads["kind"]}, {heads["heads"]} guesses, {heads["width"]} wide, reads layers {layers}'
    config = read_json(folder / 'config.json')
    kind = config['architectures'][0]
    if config['model_type'] == 'llama':
        sizes = f'{config["num_hidden_layers"]} layers, {config["hidden_size"]} wide'
        return f'{kind}, {sizes}, context of {config["max_position_embeddings"]:,}'
    layers = [config.get('encoder_layers', config.get('num_layers'))]
    layers += [config.get('decoder_layers', config.get('num_decoder_layers'))]
    return f'{kind}, {layers[0]} encoder and {layers[1]} decoder layers, {config["d_model"]} wide'


def vocabulary(name):
    "The size of the vocabulary: a model's own, or that of the target of heads."
    files = [WEIGHTS / name / f for f in ('config.json', 'heads.json')]
    return next(read_json(f)['vocab_size'] for f in files if f.exists())


def shown(value):
    "A value of a log as text: figures with three digits, a list, or a word for each key."
    if isinstance(value, dict):
        return ', '.join(f'{key}: {shown(v)}' for key, v in value.items())
    if isinstance(value, list):
        return ' '.join(map(shown, value))
    return f'{value:.3f}'.rstrip('0').rstrip('.') if isinstance(value, float) else str(value)


def runs(name):
    "Lines of a log by run."
    groups = {}
    for row in read_log(name):
        groups.setdefault(row['run'], []).append(row)
    return groups


def unit(name):
    "What the log of a model counts as tokens."
    return 'recordings' if 'whisper' in name else 'tokens'


def training(name):
    "The runs of a model: tokens, minutes, and the score at the end, as the rows of a table."
    measure = CARDS[name].measure
    start_tokens = start_seconds = 0
    for run, rows in runs(name).items():
        scores = [row[measure] for row in rows if measure in row]
        seen, seconds = rows[-1]['tokens'] - start_tokens, rows[-1]['seconds'] - start_seconds
        minutes = f'{seconds / 60:.0f}' if seconds > 0 else f'{rows[-1]["seconds"] / 60:.0f}'
        yield f'| {run} | {seen:,} | {minutes} | {rows[-1]["loss"]:.3f} | {shown(scores[-1])} |'
        start_tokens, start_seconds = rows[-1]['tokens'], rows[-1]['seconds']


def curve(name, points=8):
    "The curve: some lines of the log that have a score, the first and the last among them."
    rows = [row for row in read_log(name) if CARDS[name].measure in row]
    chosen = sorted({round(i * (len(rows) - 1) / (points - 1)) for i in range(points)})
    for row in (rows[i] for i in chosen):
        yield f'| {row["run"]} | {row["tokens"]:,} | {row["loss"]:.3f} | {shown(row[CARDS[name].measure])} |'


def versions(name):
    "How the last run was called, where its calls are stored."
    path = WEIGHTS / name / 'run.json'
    if not path.exists():
        return ''
    call = read_json(path)[-1]
    command = ' '.join(call['argv']).partition(' --pause-while')[0]
    return (
        f'\n\nLast call, of {call["date"][:10]}: `python experiments/{command}`, seed {call["seed"]}, '
        f'Python {call["python"]}, torch {call["torch"]}, on a CPU.'
    )


def notebook_title(notebook):
    "The title of a notebook."
    first = next(c for c in nbformat.read(ROOT / notebook, 4).cells if c.cell_type == 'markdown')
    return first.source.splitlines()[0].removeprefix('# ')


def shipped(measure):
    "A cell of the notebook's table of the shipped `pico`, by the beginning of its row."
    text = '\n'.join(c.source for c in nbformat.read(ROOT / FURTHER, 4).cells)
    head = re.search(r'^\| measure \|.*$', text, flags=re.M).group().split('|')
    column = [cell.strip() for cell in head].index('shipped')
    row = re.search(rf'^\| {re.escape(measure)}.*$', text, flags=re.M).group()
    return row.split('|')[column].strip()


# The cards


def front(name):
    "The metadata that the Hub reads."
    card = CARDS[name]
    lines = ['license: apache-2.0', 'language:', '- en', *(['- de'] if 'seq2seq' in name else [])]
    lines += ['library_name: transformers', f'pipeline_tag: {card.task}']
    lines += (
        ['tags:', '- decodelab', '- speculative-decoding']
        if card.base
        else ['tags:', '- decodelab']
    )
    return '\n'.join(['---', *lines, '---'])


def model_card(name):
    "The card of a model."
    card, (weights, types, size) = CARDS[name], tensors(name)
    names = dict(BF16='bfloat16', F32='float32', F16='float16')
    kinds = ', '.join(names.get(kind, kind) for kind in types)
    words = dict(
        name=name,
        base=card.base,
        drafter='EagleDrafter' if 'eagle' in name else 'MedusaDrafter',
        prompt='three hundred and forty-two' if 'seq2seq' in name else 'def fibonacci(n):',
        corpus='CORPUS.md' if name == 'pico' else '../pico/CORPUS.md',
        repeats=shipped('greedy texts'),
    )
    relation = f'| drafts for | [{card.base}](../{card.base}/README.md) |\n' if card.base else ''
    return f"""{front(name)}
<!-- Made from the files of this folder by tools/cards.py. -->
# {name}: {card.title[0].lower()}{card.title[1:]}

{card.summary}

| | |
|---|---|
| architecture | {architecture(name)} |
| weights | {weights:,} in {kinds}, {size / 1e6:.1f} MB |
| vocabulary | {vocabulary(name):,} |
{relation}| trained by | [{notebook_title(card.notebook)}]({SITE}/{card.notebook}) |
| licence | Apache-2.0, as decodelab |

## Use

```python
{card.use.format(**words)}```

## Intended use

{card.intended} {NOT_FOR}

## Data

{card.data.format(**words)}

## Training

| run | {unit(name)} | minutes | loss at the end | score at the end |
|---|---|---|---|---|
{chr(10).join(training(name))}

The score is the {card.meaning}. The loss is in nats a token (of heads: summed over guesses).{versions(name)}

## Curve

| run | {unit(name)} so far | loss | score |
|---|---|---|---|
{chr(10).join(curve(name))}

Every line of the runs is in `log.jsonl`.

## Limits

{card.limits.format(**words)} {NO_SAFETY}
"""


def licences():
    "The rows of the corpus: package, distribution, version, licence, files, characters."
    with LICENCES.open(newline='', encoding='utf-8') as file:
        return list(csv.DictReader(file))


def licence_rows():
    "Licences by the characters that have them."
    counts, sizes = Counter(), Counter()
    for row in licences():
        counts[row['licence']] += 1
        sizes[row['licence']] += int(row['characters'])
    whole = sum(sizes.values())
    for licence, size in sizes.most_common():
        yield f'| {licence} | {counts[licence]} | {size:,} | {size / whole:.1%} |'


def package_rows():
    "A line for each package of the corpus."
    for row in licences():
        numbers = f'{int(row["files"]):,} | {int(row["characters"]):,}'
        home = '' if row['distribution'] == row['package'] else row['distribution']
        yield f'| {row["package"]} | {home} | {row["version"]} | {row["licence"]} | {numbers} |'


def corpus_card():
    "The data card of the corpus."
    rows = licences()
    files = sum(int(row['files']) for row in rows)
    characters = sum(int(row['characters']) for row in rows)
    return f"""<!-- Made from corpus.json and docs/corpus_licences.csv by tools/cards.py. -->
# The corpus of the embedded models

{len(rows)} packages, {files:,} files, {characters / 1e6:.0f} million characters of Python source, as they lay on one machine: CPython's standard library and the packages that decodelab and its tools need. `corpus.json` has the numbers as data. The text itself is not part of decodelab; anyone who installs the versions below has it.

## What it is for

It trained `pico`, `pico-draft`, `pico-alt` and the heads of `pico` ([the runs]({SITE}/{FURTHER})). Their first runs read ten of these packages and the standard library, 43 MB. The other embedded models read made-up text only.

## How it was made

[A corpus of Python source]({SITE}/{CORPUS_NOTEBOOK}) has the code, and makes it again from what is installed. Files are taken in the order of the hash of their names, the standard library first and four times over, then each package up to 16 million characters.

## What is left out, and why

| left out | why |
|---|---|
| decodelab itself | a model should not have read the laboratory that measures it |
| 18 modules of the standard library | held out for the loss on new text and for the built-in prompts |
| files with more than a twentieth of their lines in those modules | copies would leak them |
| files with more than half of their lines in files before them | near-duplicates teach a model to repeat |
| folders of tests, encodings, `lib2to3`, `pydoc_data`, `turtledemo` | much text, little code that people write |
| files under 200 or over 150,000 characters, with lines of more than 80 characters on average, with few distinct lines, many digits or characters outside ASCII | tables of data, not code |
| stubs, compiled modules, documentation | not Python source |

## People in the text

Source files name their authors, in copyright lines and sometimes with an address. Nothing was done to remove these. The embedded models are small and saw most of the text once; whether one of them can repeat such a line was not measured.

## Licences

Every package is under a licence that allows the use of its source; each keeps its own. Read from the metadata of the very versions (`python tools/corpus_licences.py`).

| licence | packages | characters | share |
|---|---|---|---|
{chr(10).join(licence_rows())}

`LicenseRef-matplotlib` is matplotlib's own, modelled on Python's. The weights are under Apache-2.0, as decodelab is. The twelve built-in prompts (`decodelab/data/prompts.jsonl`) are lines of CPython 3.11, copyright Python Software Foundation, under its licence.

## Every package

| package | distribution, if another name | version | licence | files | characters |
|---|---|---|---|---|---|
{chr(10).join(package_rows())}
"""


def cards():
    "File -> its text."
    texts = {WEIGHTS / name / 'README.md': model_card(name) for name in CARDS}
    return texts | {WEIGHTS / 'pico' / 'CORPUS.md': corpus_card()}


if __name__ == '__main__':
    for path, text in cards().items():
        path.write_text(text, encoding='utf-8')
