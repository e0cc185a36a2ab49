"""Attacks on watermarked sequences: invariants of every composition, on real vocabularies and checkpoints.

Tests of real files need a folder `shared` beside the checkout, and are skipped without it.
"""

import numpy as np
import pytest

from decodelab import GreenList, Sample, Temperature, decode, detect, load
from decodelab.detection import (
    ChangeCase,
    Compose,
    CopyPaste,
    Delete,
    FromModel,
    FromText,
    FromVocabulary,
    Homoglyphs,
    Insert,
    Normalize,
    Paraphrase,
    RemoveCharacters,
    Retokenize,
    Shuffle,
    Spoof,
    Substitute,
    Truncate,
    Whitespace,
    ZeroWidth,
    normalize_text,
)
from decodelab.detection.attacks_characters import CYRILLIC, FULLWIDTH, GREEK
from decodelab.evaluate import edit_distance
from tests.drafters.test_universal import DATA, MIXED, real  # noqa: F401 (a fixture)

PLAIN = (
    MIXED.replace('</s>', '').replace('<|endoftext|>', '')
    + 'The quick brown fox; jumps over (the lazy) dog.\nOne more line of it.\n'
)


def some_attack(rng, host):
    share = float(rng.choice([0, 0.1, 0.3, 0.7, 1]))
    every = [
        lambda: Delete(share),
        lambda: Insert(share),
        lambda: Insert(share, FromText()),
        lambda: Substitute(share),
        lambda: Shuffle(share, int(rng.integers(2, 6))),
        lambda: Truncate(share, ['end', 'start'][int(rng.integers(2))]),
        lambda: CopyPaste([host], share, 1),
        lambda: Spoof(GreenList(7), tries=3),
        lambda: Retokenize(),
        lambda: Homoglyphs(share, [CYRILLIC, GREEK, FULLWIDTH][int(rng.integers(3))]),
        lambda: Whitespace(share),
        lambda: ZeroWidth(share),
        lambda: ChangeCase(share, ['lower', 'upper', 'swap'][int(rng.integers(3))]),
        lambda: RemoveCharacters('ae\n'),
        lambda: Normalize(),
    ]
    return every[int(rng.integers(len(every)))]()


def test_every_chain_keeps_what_it_must():
    lm = load('pico-draft', device='cpu')
    tokenizer, eos = lm.tokenizer, lm.eos[0]
    whole = tokenizer(PLAIN)['input_ids']
    host = np.random.default_rng(0).integers(300, 4000, 2000).tolist()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        ids = (
            whole[int(rng.integers(20)) : int(rng.integers(20, 60))]
            if seed % 3
            else rng.integers(2, 4096, int(rng.integers(0, 40))).tolist()
        )
        for _ in range(int(rng.integers(4))):
            ids.insert(int(rng.integers(len(ids) + 1)), eos)
        prompt = int(rng.integers(len(ids) + 1))
        attack = Compose(*(some_attack(rng, host) for _ in range(int(rng.integers(1, 4)))))
        try:
            out = attack(ids, seed, tokenizer, prompt)
        except ValueError as e:  # only Own() has a reason: a text of one token
            assert 'no second token' in str(e), attack
            continue
        assert out == attack(ids, seed, tokenizer, prompt), attack
        assert out.prompt == prompt, attack
        assert out.ids[:prompt] == ids[:prompt], attack
        assert out.origin[:prompt] == list(range(prompt)), attack
        assert [t for t in out.ids if t in (0, 1)] == [t for t in ids if t in (0, 1)], (
            attack
        )  # special ids, all and in order
        assert len(out.origin) == len(out.ids), attack
        assert all(o == -1 or prompt <= o < len(ids) for o in out.origin[prompt:]), attack
        again = list(ids)
        for e in reversed(out.edits):
            again[e.at : e.at + len(e.old)] = e.new
        assert again == out.ids, attack
        assert 0 <= out.share <= 1, attack
        assert out.share > 0 or out.ids == ids, attack
        assert edit_distance(ids, out.ids) <= sum(max(len(e.old), len(e.new)) for e in out.edits), (
            attack
        )
        assert all(prompt <= a < b <= len(out.ids) for a, b in out.spans), attack


def test_nothing_is_done_at_strength_0():
    lm = load('pico-draft', device='cpu')
    ids = lm.encode(PLAIN)
    for attack in (
        Delete(0),
        Insert(0),
        Substitute(0),
        Shuffle(0),
        Truncate(0),
        CopyPaste([[5]], 1.0),
        Retokenize(),
        Homoglyphs(0),
        Whitespace(0),
        ZeroWidth(0),
        ChangeCase(0),
        Paraphrase(lm, share=0),
    ):
        out = attack(ids, 3, lm.tokenizer, 4)
        assert out.ids == ids, attack
        assert out.share == 0, attack
        assert out.edits == [], attack
        assert out.origin == list(range(len(ids))), attack
    assert Insert(0, FromVocabulary())(ids).ids == ids  # needs no vocabulary where it draws nothing


def test_characters_in_real_vocabularies(real):
    for name, tokenizer in real.items():
        ids = tokenizer(PLAIN)['input_ids']
        for prompt in (0, 5, len(ids) // 2):
            same = Retokenize()(ids, 0, tokenizer, prompt)
            assert tokenizer.decode(same.ids) == tokenizer.decode(ids), (
                name,
                prompt,
            )
            assert same.share < 0.2, (
                name,
                prompt,
            )
        assert Retokenize()(ids, 0, tokenizer).ids == ids, name
        form = (Retokenize() | Normalize())(ids, 0, tokenizer)
        assert form.text.lstrip() == normalize_text(PLAIN).lstrip(), name
        for attack in (
            Homoglyphs(0.3),
            Homoglyphs(0.3, GREEK),
            Homoglyphs(0.3, FULLWIDTH),
            Whitespace(0.5),
            ZeroWidth(0.2),
            Homoglyphs(1.0) | Whitespace(1.0),
        ):
            out = attack(ids, 1, tokenizer)
            undone = (attack | Normalize())(ids, 1, tokenizer)
            assert undone.ids == form.ids, (name, attack)
            assert abs(undone.share - form.share) < 0.02, (name, attack)
            assert out.share > 0.1, (name, attack)
        cut = (Delete(0.3) | Substitute(0.2) | Retokenize())(ids, 2, tokenizer)
        assert 0 < cut.share < 1, name
        assert all(o < len(ids) for o in cut.origin), name


@pytest.mark.skipif(
    not (DATA / 'models' / 'stories260K').is_dir(),
    reason='no folder shared/data/models beside the checkout',
)
def test_a_real_checkpoint_edits_and_rewrites():
    lm = load(DATA / 'models' / 'stories260K', device='cpu')
    watermark = GreenList(42, delta=4.0)
    trace = decode(
        lm,
        'Once upon a time',
        Sample([Temperature(1.0), watermark]),
        120,
        seed=1,
        stop=lambda ids: False,
    )
    ids, start = trace.prompt + trace.tokens, len(trace.prompt)
    assert detect(watermark, ids, start).p < 1e-9
    chosen = Substitute(0.3, FromModel(lm))(ids, 0, lm.tokenizer, start)
    assert chosen.share == pytest.approx(0.3)
    assert detect(watermark, chosen.ids, start).p > detect(watermark, ids, start).p
    paraphrase = Paraphrase(
        load('pico-alt', device='cpu'), template='{}\n', strategy=Sample([Temperature(0.8)])
    )(ids, 0, lm.tokenizer, start)
    assert paraphrase.share > 0.5
    assert detect(watermark, paraphrase.ids, start).p > 1e-3
