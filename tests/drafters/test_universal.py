"""Drafters with another tokenizer on real vocabularies and checkpoints.

Tests of real files need a folder `shared` beside the checkout, and are skipped without it.
"""

import base64
import json
import struct

import pytest
import torch
from repo import ROOT
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from decodelab import (
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    RepetitionPenalty,
    Sample,
    SequenceBias,
    Speculative,
    Stop,
    Temperature,
    TokenIntersectionDrafter,
    UniversalDrafter,
    certify,
    decode,
    load,
    random_lm,
)
from decodelab.drafters import StringRejectionDrafter, overlap
from decodelab.drafters.universal import PATIENCE, Retokenizer, VocabMap
from decodelab.evaluate.certify import own_evidence
from decodelab.models.tokenizer_bytes import TokenizerBytes, shared_tokens

DATA = ROOT.parent / 'shared' / 'data'
MIXED = '# naïve café 日本語 🙂🙂\ndef f(x):\n\treturn  "Überraschung</s><|endoftext|>", 12345 if x else None\n\n    '


# Without any files


def letters(text, merges=()):
    "A tokenizer with a token per letter and per merge."
    tokens = [*text, *(a + b for a, b in merges)]
    vocab = {t: i for i, t in enumerate(tokens)}
    rust = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    rust.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=rust)


def test_greedy_certificates_over_the_families():
    draft = random_lm(seed=3, layers=1)
    for kind in (UniversalDrafter, TokenIntersectionDrafter, StringRejectionDrafter):
        assert certify(
            Speculative(kind(draft), lookahead=FixedLookahead(3)), max_new_tokens=8
        ).lossless, kind


def test_a_draft_that_leads_nowhere_ends():
    rule = [('-' * n, '-' * n) for n in (1, 2, 4, 8, 16, 32)]
    target = random_lm(vocab_size=8, tokenizer=letters('a-', rule))  # 64 dashes are one token
    draft = random_lm(vocab_size=4, layers=1, tokenizer=letters('a-z'))
    for token in (1, 2):  # dashes without end; what the target cannot write
        drafter = UniversalDrafter(draft, base=Greedy([SequenceBias({(token,): 100.0})]))
        trace = decode(target, [0], Speculative(drafter, lookahead=FixedLookahead(4)), 6)
        assert trace.tokens == decode(target, [0], Greedy(), 6).tokens
        assert max(s.draft_passes for s in trace.steps) <= 64 + PATIENCE
        assert all(s.drafted <= 4 for s in trace.steps)


@pytest.mark.parametrize('k', range(1, 8))
def test_the_lookahead_is_never_exceeded_and_asked_in_terms_of_the_target(k):
    target = load('pico-draft', device='cpu', dtype=torch.float64)
    alt = load('pico-alt', device='cpu', dtype=torch.float64)

    class Watching(FixedLookahead):
        asked = []

        def keep_drafting(self, i, row, token):
            self.asked.append(i)
            return super().keep_drafting(i, row, token)

    for pair in ((target, alt), (alt, target)):
        trace = decode(
            pair[0],
            'import os\nimport sys\n\ndef main',
            Speculative(UniversalDrafter(pair[1]), lookahead=Watching(k)),
            24,
            stop=Stop(eos=()),
        )
        assert all(s.drafted <= k for s in trace.steps)
        assert max(Watching.asked) <= k
        assert sum(s.drafted for s in trace.steps) > 0
        assert all(
            a - b <= 1 for b, a in zip(Watching.asked, Watching.asked[1:])
        )  # one more at a time


def test_an_interrupted_call_alters_nothing():
    target, alt = load('pico-draft', device='cpu'), load('pico-alt', device='cpu')

    def state(lm):
        return (
            lm.model.config.to_json_string(),
            lm.model.generation_config.to_json_string(),
            lm.tokenizer.backend_tokenizer.to_str(),
            [(n, w.clone()) for n, w in lm.model.state_dict().items()],
            [id(m) for m in lm.model.modules()],
        )

    def interrupt(ids):
        raise KeyboardInterrupt

    before = [state(target), state(alt)]
    for kind, base in (
        (UniversalDrafter, Greedy()),
        (TokenIntersectionDrafter, Sample([RepetitionPenalty(1.2), Temperature(0.7)])),
    ):
        with pytest.raises(KeyboardInterrupt):
            decode(target, 'def f', Speculative(kind(alt), base=base), 12, stop=interrupt)
        decode(target, 'def f', Speculative(kind(alt), base=base), 12)
    for a, b in zip(before, [state(target), state(alt)]):
        assert a[:3] == b[:3]
        assert a[4] == b[4]
        assert all(n == m and torch.equal(v, w) for (n, v), (m, w) in zip(a[3], b[3]))


# Real vocabularies


def tiktoken_like(path):
    "Whisper's vocabulary as a byte-level BPE: the merge of each token is the split that its own ranks make."
    lines = [line.split() for line in path.read_text().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    byte = bytes_to_unicode()
    name = lambda raw: ''.join(byte[b] for b in raw)
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(
                (i for i in range(len(parts) - 1)),
                key=lambda i: (
                    ranks.get(parts[i] + parts[i + 1], rank)
                    if parts[i] + parts[i + 1] != token
                    else rank
                ),
            )
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((name(parts[0]), name(parts[1])))
    return byte_level({name(t): r for t, r in ranks.items()}, merges)


def byte_level(vocab, merges):
    rust = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    return rust


def sentencepiece_like(path):
    "Mistral's SentencePiece file, read field by field, as a BPE with leading-space marks and byte tokens."
    data = path.read_bytes()
    at = 0
    pieces = []

    def varint(buffer, i):
        value = shift = 0
        while True:
            value |= (buffer[i] & 127) << shift
            shift, i = shift + 7, i + 1
            if buffer[i - 1] < 128:
                return value, i

    while at < len(data):
        tag, at = varint(data, at)
        size, at = varint(data, at)
        if tag == 10:  # a piece: its text, its score, its type
            part = data[at : at + size]
            i = 0
            piece = dict(score=0.0, kind=1)
            while i < size:
                key, i = varint(part, i)
                if key == 10:
                    n, i = varint(part, i)
                    piece['text'], i = part[i : i + n].decode(), i + n
                elif key == 21:
                    piece['score'], i = struct.unpack('<f', part[i : i + 4])[0], i + 4
                else:
                    piece['kind'], i = varint(part, i)
            pieces.append(piece)
        at += size
    vocab = {p['text']: i for i, p in enumerate(pieces)}
    merges = [
        (p['text'][:n], p['text'][n:])
        for p in sorted(pieces, key=lambda p: -p['score'])
        if p['kind'] == 1
        for n in range(1, len(p['text']))
        if p['text'][:n] in vocab and p['text'][n:] in vocab
    ]
    rust = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token='<unk>')
    )
    rust.normalizer = normalizers.Sequence(
        [normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')]
    )
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace('▁', ' '),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(' ', 1, 0),
        ]
    )
    return rust


@pytest.fixture(scope='module')
def real():
    folder = DATA / 'tokenizers'
    if not folder.is_dir():
        pytest.skip('no folder shared/data/tokenizers beside the checkout')
    merges = [
        tuple(line.split())
        for line in (folder / 'gpt2' / 'merges.txt').read_text().splitlines()
        if line and not line.startswith('#version')
    ]
    result = dict(
        gpt2=byte_level(json.loads((folder / 'gpt2' / 'vocab.json').read_text()), merges),
        gptneox=Tokenizer.from_file(str(folder / 'gptneox' / '20B_tokenizer.json')),
        mistral=sentencepiece_like(folder / 'mistral' / 'tokenizer.model.v1'),
        whisper=tiktoken_like(next((folder / 'whisper').glob('*.tiktoken'))),
    )
    special = dict(
        gpt2=dict(eos_token='<|endoftext|>'),
        gptneox=dict(eos_token='<|endoftext|>'),
        mistral=dict(bos_token='<s>', eos_token='</s>', unk_token='<unk>'),
        whisper={},
    )
    return {
        name: PreTrainedTokenizerFast(tokenizer_object=rust, **special[name])
        for name, rust in result.items()
    }


@pytest.fixture(scope='module')
def spelled(real):
    "The bytes of the tokens of each."
    return {name: TokenizerBytes(t) for name, t in real.items()}


def test_real_vocabularies_spell_their_tokens(real, spelled):
    for name, tokenizer in real.items():
        spelling = spelled[name]
        ids = spelling.encode(MIXED.encode(), start=True)
        assert (
            spelling.text(ids).removeprefix(b' ' if spelling.adds_space else b'') == MIXED.encode()
        ), name
        assert not set(ids) & set(spelling.special), name
        plain = MIXED.replace('</s>', '').replace('<|endoftext|>', '')
        assert (
            spelling.encode(plain.encode(), start=True)
            == tokenizer(plain, add_special_tokens=False)['input_ids']
        ), name
        assert tokenizer.decode(spelling.encode(b' hello')).strip() == 'hello'
        assert spelling.adds_space == (name == 'mistral')
        for cut in range(len(MIXED.encode())):  # cut anywhere, also inside a character
            left, right = MIXED.encode()[:cut], MIXED.encode()[cut:]
            assert spelling.text(spelling.encode(left) + spelling.encode(right)) == MIXED.encode()


def test_the_overlap_of_real_vocabularies(real, spelled):
    frame = overlap(real, MIXED).set_index(['target', 'draft'])
    names = {name: set(t.get_vocab()) for name, t in real.items()}
    same = len(names['gpt2'] & names['whisper'])
    # both byte-level: names decide
    assert frame.shared['gpt2', 'whisper'] == same
    assert frame.target_tokens['gpt2', 'whisper'] == 50257
    byte = {f'<0x{b:02X}>' for b in range(256)}
    known = len(
        {
            n.replace('▁', 'Ġ')
            for n in names['mistral'] - byte
            if n.isascii() or n.lstrip('▁').isascii()
        }
        & names['gpt2']
    )
    assert (
        known * 0.98 <= frame.shared['mistral', 'gpt2'] <= known + 256 + 2000
    )  # by bytes: also what is not ASCII
    assert (frame.text_share > 0.5).all()
    assert (frame.shared > 8000).all()
    table = shared_tokens(spelled['mistral'], spelled['gpt2'])
    assert real['mistral'].convert_ids_to_tokens(2) == '</s>'
    assert real['gpt2'].convert_ids_to_tokens(table[2]) == '<|endoftext|>'
    assert 1 not in table


def test_a_text_is_followed_through_real_vocabularies(real, spelled):
    plain = MIXED.replace('</s>', '').replace('<|endoftext|>', '')
    for a in real:
        for b in real:
            words = VocabMap(spelled[a], spelled[b])
            ids = spelled[a].encode(plain.encode(), start=True)
            text = Retokenizer(words, ids[:1])
            for n in range(1, len(ids) + 1):
                own = text.follow(ids[:n])
                if a == b:
                    assert own == ids[:n]
            assert own == spelled[b].encode(plain.encode(), start=True), (a, b)


# Real checkpoints


@pytest.fixture(scope='module')
def stories():
    if not (DATA / 'models').is_dir():
        pytest.skip('no folder shared/data/models beside the checkout')
    return {
        name: load(DATA / 'models' / name, device='cpu', dtype=torch.float64)
        for name in ('stories260K', 'babyllama361')
    }


PROMPTS = [
    'Once upon a time',
    'One day, a little girl named Lily',
    'The sun was',
    '',
    '日本 🙂 "Tom" said',
]


@pytest.mark.parametrize(
    'order', [('babyllama361', 'stories260K'), ('stories260K', 'babyllama361')]
)
def test_real_checkpoints_with_two_tokenizers(stories, order):
    target, draft = (stories[name] for name in order)
    plain = {prompt: decode(target, prompt, Greedy(), 40).tokens for prompt in PROMPTS}
    for kind, least in (
        (UniversalDrafter, 0.2),
        (TokenIntersectionDrafter, 0.02),
    ):  # tokens that both have are seldom what the other would say
        steps = []
        for prompt in PROMPTS:
            fast = decode(target, prompt, Speculative(kind(draft), lookahead=FixedLookahead(4)), 40)
            assert fast.tokens == plain[prompt], (kind, prompt)
            steps += fast.steps
        assert sum(s.accepted for s in steps) > least * sum(s.drafted for s in steps) > 0
    sampled = Speculative(TokenIntersectionDrafter(draft), base=Sample([Temperature(0.8)]))
    check = own_evidence(sampled, target, list(map(target.encode, PROMPTS[:2])), 24, 50, seed=0)
    assert check.passed, check


def test_a_checkpoint_drafts_for_itself_through_text(stories):
    for lm in stories.values():
        for prompt in (*PROMPTS[:3], lm.encode('Once upon')[1:], lm.encode('Once up')[:-1]):
            counts = []
            for drafter in (
                UniversalDrafter(lm),
                TokenIntersectionDrafter(lm),
                AssistantDrafter(lm),
            ):
                steps = decode(
                    lm, prompt, Speculative(drafter, lookahead=FixedLookahead(4)), 40
                ).steps
                assert not any(s.rejected for s in steps), (drafter, prompt)
                counts.append((sum(s.target_passes for s in steps), sum(s.drafted for s in steps)))
            assert len(set(counts)) == 1, counts
