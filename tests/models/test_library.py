"The library in C++ gives the logits of the model's own forward: any configuration, pieces, trees, rows and drafts."

import copy
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, LlamaConfig, MistralConfig

from decodelab import (
    LM,
    AssistantDrafter,
    ConfidenceLookahead,
    CumulativeLookahead,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    RocLookahead,
    Sample,
    Speculative,
    Temperature,
    TokenVerifier,
    TreeDrafter,
    decode,
    decode_batch,
)
from decodelab.drafters.eagle import EagleDrafter, EagleHeads
from decodelab.evaluate.certify import own_evidence, token_check
from decodelab.models import library as library_module
from decodelab.models.capabilities import LIBRARY, READERS, ProbeRun, row_errors
from decodelab.models.library import (
    ACTIVATIONS,
    ChainLimits,
    LibraryForward,
    RowOfIds,
    activation_number,
    library_reason,
    room_for,
    whole_vectors,
)
from decodelab.models.quantize import quantize, round_halves, round_rows
from decodelab.strategies.sampling import Scorer
from tests.models.test_native_forward import DRAFTERS, TEXTS, configs, examples, made, wander

FLOAT = torch.float32
IDS = random.Random(0).choices(range(61), k=60)


@pytest.fixture(scope='module', autouse=True)
def folder(tmp_path_factory):
    "A folder of libraries for all workers; compiled once for each of them at most."
    base = tmp_path_factory.getbasetemp()
    path = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'libraries'
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('DECODELAB_CACHE', str(path))
        yield path


def in_library(model):
    "The model as an `LM` that the library reads; None if it has rotary tables that change."
    lm = LM(model)
    reason = library_reason(lm.native)
    if 'rotary tables' in reason:
        return None
    assert reason == ''
    lm.compile()
    assert lm.in_library
    return lm


def full_logits(model, ids):
    "Logits `(n, V)` by the model's own forward."
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


pieces = st.lists(
    st.tuples(st.sampled_from((1, 1, 2, 5, 7, 17)), st.sampled_from((0, 0, 1, 4))),
    min_size=3,
    max_size=7,
)


@examples(60)
@given(configs(), pieces, st.integers(0, 3))
def test_any_config_in_any_pieces(config, steps, seed):
    model = made(config[0], FLOAT, seed, **config[1])
    lm = in_library(model)
    if lm is not None:
        ids = random.Random(seed).choices(range(61), k=60)
        assert wander(lm, full_logits(model, ids), ids, steps) < 1e-4


@examples(12)
@given(configs(), st.integers(0, 3))
def test_any_config_in_every_way(config, seed):
    lm = in_library(made(config[0], FLOAT, seed, **config[1]))
    if lm is None:
        return
    check_every_way(lm)


def check_every_way(lm):
    "Trees, rows, states and early layers: logits as by the model's own forward."
    lm.is_probed = False  # a probe reads the model itself
    run = ProbeRun(lm)
    readers = dict.fromkeys(reader for way, reader in READERS.items() if way != LIBRARY)
    for reader in readers:
        if reader.__name__ == 'read_exit' and lm.depth == 1:
            continue
        for way, logits, reference in reader(run):
            assert row_errors(logits, reference).max() < 1e-3, way


@examples(12)
@given(configs(), st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(2, 3))
def test_any_config_in_rows(config, lengths, size):
    model = made(config[0], FLOAT, **config[1])
    lm = in_library(model)
    if lm is not None:
        check_rows(lm, model, lengths, size)


def check_rows(lm, model, lengths, size):
    "Batches of texts of any lengths: tokens as by the model's own forward."
    texts = [random.Random(n).choices(range(61), k=n) for n in lengths]
    batch = decode_batch(lm, texts, Greedy(), size, 8)
    plain = LM(model, native=False)
    assert [t.tokens for t in batch] == [decode(plain, t, Greedy(), 8).tokens for t in texts]
    assert batch.unbatched == {}


NAMES = 'silu gelu gelu_pytorch_tanh quick_gelu relu relu2 tanh sigmoid linear'.split()


@pytest.mark.parametrize('n, name', [*enumerate(NAMES)])
def test_every_activation(n, name):
    model = made(dtype=FLOAT, hidden_act=name)
    assert len(NAMES) == len(ACTIVATIONS)
    assert activation_number(model.model.layers[0].mlp.act_fn) == n
    assert wander(in_library(model), full_logits(model, IDS), IDS, [(60, 0)]) < 1e-4


LONG = [(LlamaConfig, {}), (MistralConfig, dict(sliding_window=300)), (GPT2Config, {})]


@pytest.mark.parametrize('config, kw', LONG)
def test_a_long_prompt_is_read_in_chunks(config, kw):
    model = made(config, FLOAT, **dict(max_position_embeddings=900) | kw)
    ids = random.Random(0).choices(range(61), k=700)
    whole, lm = full_logits(model, ids), in_library(model)
    for last in (1, 300, 650):
        error = (lm.session().logits(ids, last) - whole[-last:]).abs().max()
        assert error / whole.abs().max() < 1e-4
    rows = [ids, ids[:1] + ids[:0:-1]]
    session = lm.session()
    session.logits(ids[:1])
    both = torch.stack([whole, full_logits(model, rows[1])])
    error = (session.expand(2).forward(rows, 400) - both[:, -400:]).abs().max()
    assert error / whole.abs().max() < 1e-4


@pytest.mark.parametrize('n', [65, 300])  # in one chunk, and in several
def test_no_position_is_read_that_is_not_learned(n):
    "As the native forward, it raises `IndexError`; a session goes on with the ids that it had."
    model = made(GPT2Config, FLOAT, max_position_embeddings=64)
    lm, ids = in_library(model), random.Random(0).choices(range(61), k=n)
    session = lm.session()
    session.logits(ids[:60])
    with pytest.raises(IndexError, match=f'64 learned positions, not {n}'):
        session.logits(ids)
    whole = full_logits(model, ids[:64])
    assert (session.logits(ids[:64], 3) - whole[-3:]).abs().max() / whole.abs().max() < 1e-4
    with pytest.raises(IndexError, match='64 learned positions, not'):
        session.expand(2).forward([ids, ids])
    with pytest.raises(IndexError, match='64 learned positions, not'):
        lm.native.read_rows(lm.native.slot_cache(), [RowOfIds(ids, 0, 1, 0)])


@pytest.mark.parametrize('config, kw', LONG)
def test_steps_behind_a_long_context(config, kw):
    "Keys are read in blocks of 64, and transposed for more than 24 queries."
    model = made(config, FLOAT, **dict(max_position_embeddings=2200) | kw)
    ids = random.Random(1).choices(range(61), k=2100)
    whole, lm = full_logits(model, ids), in_library(model)
    session, begin = lm.session(), 0
    for n in (1021, 1, 1, 2, 1, 3, 30, 985, 1, 2, 1, 5):
        logits = session.logits(ids[: begin + n], n)
        assert (logits - whole[begin : begin + n]).abs().max() / whole.abs().max() < 1e-4
        begin += n
    ends = 1, 1023, 1025, 2099
    batch = decode_batch(lm, [ids[:n] for n in ends], Greedy(), 4, 4)
    plain = LM(model, native=False)
    assert [t.tokens for t in batch] == [decode(plain, ids[:n], Greedy(), 4).tokens for n in ends]


@pytest.mark.parametrize('width', [3, 12, 600])
def test_heads_of_any_width(width):
    model = made(dtype=FLOAT, head_dim=2 * width, hidden_size=4 * width)
    lm = in_library(model)
    assert wander(lm, full_logits(model, IDS), IDS, [(40, 0), (1, 0), (7, 2), (8, 0)]) < 1e-4


def test_memory_of_keys_and_values():
    "Whole vectors at whole lines of memory, all zero, and no page of it before it is written."
    for shape in ((1, 2, 64, 20), (3, 1, 128, 64), (2, 2, 1, 3)):
        buffer = whole_vectors(*shape, lanes=8)
        assert buffer.shape == shape
        assert not buffer.any()
        assert buffer.data_ptr() % 64 == 0
        assert buffer.stride(2) % 8 == 0
    assert [room_for(n) for n in (1, 43, 44, 1024)] == [64, 64, 128, 1536]
    status = Path('/proc/self/statm')
    if status.exists():
        pages = lambda: int(status.read_text().split()[1])
        before = pages()
        buffer = whole_vectors(1, 8, 1 << 18, 64, lanes=8)
        assert (pages() - before) * os.sysconf('SC_PAGE_SIZE') < buffer.nbytes / 100


@pytest.mark.parametrize('n', [64, 256, 300])
def test_tokens_after_a_prompt_copy_no_keys(n):
    model = made(dtype=FLOAT, max_position_embeddings=900)
    ids = random.Random(n).choices(range(61), k=n + 32)
    session = in_library(model).session()
    session.logits(ids[:n])
    addresses = [layer.address for layer in session.cache.layers]
    for end in range(n + 1, n + 32):
        session.logits(ids[:end])
    assert [layer.address for layer in session.cache.layers] == addresses


@pytest.mark.parametrize('first', [40, 170, 340])
def test_chains_that_need_a_larger_cache(first):
    model = made(dtype=FLOAT, max_position_embeddings=900)
    ids = random.Random(first).choices(range(61), k=900)
    session = in_library(model).session()
    session.logits(ids[:first])
    n = session.cache.room - 2
    ids = ids[:n]
    tokens, probs, rows = session.chain(ids, ChainLimits(5))
    assert session.cache.room > n + 2
    whole = full_logits(model, ids + tokens)[n - 1 : -1]
    assert torch.allclose(rows, whole, atol=1e-3)
    assert whole.argmax(-1).tolist() == tokens
    assert probs == pytest.approx(whole.softmax(-1).amax(-1).tolist(), rel=1e-3)


def test_an_empty_session_expands():
    model = made(dtype=FLOAT)
    rows = [IDS[:9], IDS[9:18]]
    logits = in_library(model).session().expand(2).forward(rows, 9)
    for mine, ids in zip(logits, rows):
        assert torch.allclose(mine, full_logits(model, ids), atol=1e-3)


@pytest.mark.parametrize('config, kw', LONG)
def test_threads_do_not_change_a_number(config, kw):
    lm = in_library(made(config, FLOAT, **dict(max_position_embeddings=900) | kw))
    ids = random.Random(0).choices(range(61), k=450)
    threads = torch.get_num_threads()
    logits = []
    try:
        for n in (1, 2, 3, 8, 20):
            torch.set_num_threads(n)
            session = lm.session()
            rows = [
                session.logits(ids[:end], last) for end, last in ((40, 40), (60, 20), (450, 99))
            ]
            logits.append(torch.cat(rows))
    finally:
        torch.set_num_threads(threads)
    for other in logits[1:]:
        assert torch.equal(logits[0], other)


# Strategies


@pytest.fixture(scope='module')
def small(tmp_path_factory):
    "A target and a draft by the library, and both by the native forward."
    models = made(dtype=FLOAT, num_hidden_layers=3), made(dtype=FLOAT, seed=1, num_hidden_layers=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('DECODELAB_CACHE', str(tmp_path_factory.mktemp('empty')))
        plain = [LM(copy.deepcopy(model)) for model in models]
    assert not any(lm.in_library for lm in plain)
    return [in_library(model) for model in models], plain


def rounds(lm, strategy, size):
    "Tokens of each sequence, and the counts of its steps."
    rows = []
    for trace in decode_batch(lm, TEXTS, strategy, size, 12, seed=3):
        counts = [(s.drafted, s.accepted, s.target_passes, s.draft_passes) for s in trace.steps]
        rows.append((trace.tokens, counts))
    return rows


@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('name', DRAFTERS)
def test_every_drafter(small, name, size):
    both = []
    for lm, draft in small:
        drafter = DRAFTERS[name](draft)
        fast = Speculative(drafter, lookahead=FixedLookahead(3)) if drafter else Greedy()
        both.append(rounds(lm, fast, size))
    assert both[0] == both[1]
    plain = [decode(small[1][0], text, Greedy(), 12).tokens for text in TEXTS]
    assert [tokens for tokens, _ in both[0]] == plain


EAGLES = [
    AssistantDrafter,
    lambda heads: TreeDrafter(heads, (2, 2, 1)),
    lambda heads: EagleDrafter(heads, 6, 2),
]


@pytest.mark.parametrize('base', [Greedy(), Sample()], ids=repr)
@pytest.mark.parametrize('drafter', EAGLES)
def test_heads_beside_the_library(small, drafter, base):
    (lm, _), (plain, _) = small
    heads = EagleHeads.of(plain).randomized(plain)
    assert heads.reading_layer(plain) is heads.native_layer
    layer = heads.reading_layer(lm)
    assert isinstance(layer, LibraryForward)
    assert heads.reading_layer(lm) is layer
    strategy = Speculative(drafter(heads), base=base, lookahead=FixedLookahead(3))
    assert rounds(lm, strategy, 1) == rounds(plain, strategy, 1)
    with torch.no_grad():
        heads.block.mlp.up_proj.weight.mul_(1.5)  # trained on
    assert heads.reading_layer(lm) is not layer
    assert rounds(lm, strategy, 1) == rounds(plain, strategy, 1)


@pytest.mark.parametrize('bits', [None, 8])
def test_logits_of_states_behind_the_norm(bits):
    lm = LM(made(dtype=FLOAT, tie_word_embeddings=False))
    lm.compile()
    states = torch.randn(7, lm.text_config.hidden_size, generator=torch.Generator().manual_seed(0))
    forward = LibraryForward(lm.native.native, lm.native.library, bits and round_rows)
    logits = forward.unembed(states)
    exact = lm.model.lm_head(states)
    assert torch.allclose(logits, exact, atol=0.05 if bits else 1e-5)
    assert forward.unembed(states[:0]).shape == (0, lm.vocab_size)


class Reversed(Scorer):
    "The smallest logit has the largest score."

    def next_scores(self, ids):
        return -super().next_scores(ids)


class ReversedGreedy(Greedy):
    def bind(self, request):
        return Reversed(request, self.processors, probabilities=False)


def test_scores_that_a_subclass_changes(small):
    lm = small[0][0]
    assert lm.in_library
    for trace in [
        decode(lm, TEXTS[0], ReversedGreedy(), 5),
        *decode_batch(lm, TEXTS, ReversedGreedy(), 3, 5),
    ]:
        ids = list(trace.prompt)
        for token in trace.tokens:
            assert token == lm.session().logits(ids)[0].argmin()
            ids.append(token)


@pytest.mark.parametrize('size', [1, 3])
def test_samples_are_those_of_the_native_forward(small, size):
    base = Sample([Temperature(0.8)])
    both = []
    for lm, draft in small:
        fast = Speculative(AssistantDrafter(draft), base=base, lookahead=FixedLookahead(3))
        both.append((rounds(lm, base, size), rounds(lm, fast, size)))
    assert both[0] == both[1]


RULES = [
    ConfidenceLookahead(0.025, 6),
    CumulativeLookahead(0.999, 6),
    CumulativeLookahead(0.95, 6, 3),
    RocLookahead(0.02, 6),
]


@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('base', [Greedy(), Sample()], ids=repr)
@pytest.mark.parametrize('rule', RULES, ids=repr)
def test_rules_that_see_probabilities(small, rule, base, size):
    both = []
    for lm, draft in small:
        fast = Speculative(AssistantDrafter(draft), base=base, lookahead=rule)
        both.append(rounds(lm, fast, size))
    assert both[0] == both[1]
    lengths = [drafted for _, counts in both[0] for drafted, *_ in counts[:-2]]
    assert min(lengths) < rule.k  # drafts do end for their probabilities


@pytest.mark.parametrize('base', [Greedy(), Sample()], ids=repr)
def test_certificates(small, base):
    [(lm, draft), _] = small
    for drafter in (AssistantDrafter(draft), PromptLookupDrafter()):
        fast = Speculative(drafter, base=base, lookahead=FixedLookahead(3))
        check = own_evidence(fast, lm, TEXTS[:2], 6, samples=34, seed=0)
        assert check.passed, check


def test_sampled_rounds_follow_the_distribution(small):
    [(lm, draft), _] = small
    fast = Speculative(AssistantDrafter(draft), base=Sample(), verifier=TokenVerifier())
    check = token_check({'': fast}, lm, TEXTS[:2], samples=1000)
    assert check.passed, check


@pytest.mark.parametrize('rule', [FixedLookahead(3), *RULES], ids=repr)
def test_a_round_is_two_calls(small, rule):
    [(lm, draft), _] = small
    calls = []

    class Counted:
        "The functions of the library, counted."

        def __init__(self, code, who):
            self.code = code
            self.who = who

        def __getattr__(self, name):
            calls.append((self.who, name))
            return getattr(self.code, name)

    fast = Speculative(AssistantDrafter(draft), lookahead=rule)
    with pytest.MonkeyPatch.context() as patch:
        for who, one in (('target', lm), ('draft', draft)):
            counted = copy.copy(one.native.library)
            counted.code = Counted(counted.code, who)
            patch.setattr(one.native, 'library', counted)
        trace = decode(lm, IDS[:20], fast, 13)
    assert sum(step.drafted > 0 for step in trace.steps) >= len(trace.steps) - 1
    expected = []
    for step in trace.steps:
        expected += [('draft', 'chain')] * (step.drafted > 0) + [('target', 'forward')]
    assert calls == expected


def test_a_lookup_that_finds_nothing_costs_nothing(small):
    [(lm, _), _] = small
    trace = decode(lm, [1, 2, 3], Speculative(PromptLookupDrafter()), 3)
    plain = decode(lm, [1, 2, 3], Greedy(), 3)
    assert trace.metrics()['target_passes'] == plain.metrics()['target_passes']


# Copies of fewer bits


def rounded_model(model, rounding):
    "The model with the numbers of the library's copy; its embedding is not rounded."
    new = copy.deepcopy(model)
    with torch.no_grad():
        new.lm_head.weight = torch.nn.Parameter(new.lm_head.weight.clone())
        for module in new.modules():
            if isinstance(module, torch.nn.Linear):
                integers, step = rounding(module.weight)
                module.weight.copy_(integers.float() * (1 if step is None else step))
    return new


@pytest.mark.parametrize('bits, rounding', [(8, round_rows), (16, round_halves)])
@pytest.mark.parametrize('tied', [True, False])
def test_copies_of_fewer_bits(bits, rounding, tied):
    model = made(dtype=FLOAT, tie_word_embeddings=tied, intermediate_size=37, attention_bias=True)
    lm = LM(model)
    copied = quantize(lm, bits, copy=True)
    assert copied.in_library
    assert copied.model is lm.model
    reference = full_logits(rounded_model(model, rounding), IDS)
    assert wander(copied, reference, IDS, [(2, 0), (1, 0), (5, 2), (31, 0), (1, 1)]) < 1e-4
    assert wander(copied, full_logits(model, IDS), IDS, [(60, 0)]) > 1e-3


def test_the_copy_drafts_for_its_model(small):
    [(lm, _), (plain, _)] = small
    fast = Speculative(AssistantDrafter(quantize(lm, 8, copy=True)), lookahead=FixedLookahead(3))
    traces = [decode(lm, text, fast, 12) for text in TEXTS]
    assert [t.tokens for t in traces] == [decode(plain, t, Greedy(), 12).tokens for t in TEXTS]
    assert sum(t.metrics()['accepted'] for t in traces) > 30


# Files and changes


def test_weights_that_are_stored_in_16_bits_are_copied_exactly():
    model = made(dtype=FLOAT)
    model.to(torch.bfloat16).float()
    lm = in_library(model)
    assert 2 * lm.native.model.bytes == in_library(made(dtype=FLOAT)).native.model.bytes
    assert wander(lm, full_logits(model, IDS), IDS, [(9, 0), (1, 0), (3, 1)]) < 1e-4


def test_a_changed_model_is_copied_again():
    model = made(dtype=FLOAT)
    lm = in_library(model)
    for name, p in model.named_parameters():
        with torch.no_grad():
            p.mul_(1.1)
        reference = full_logits(model, IDS)
        assert wander(lm, reference, IDS, [(20, 0)]) < 1e-4, name
    assert lm.in_library


def test_a_hook_sees_every_pass(small):
    [(lm, _), _] = small
    calls = []
    session = lm.session()
    session.logits(IDS[:10])
    hook = lm.model.model.layers[1].mlp.register_forward_hook(lambda *args: calls.append(1))
    reference = full_logits(lm.model, IDS[:13])
    del calls[:]
    logits = session.logits(IDS[:13], 2)
    hook.remove()
    assert len(calls) == 1
    assert torch.allclose(logits, reference[-2:], atol=1e-3)


def test_a_library_in_the_cache_is_used_at_once():
    assert library_module.open_library(build=True) is not None
    assert LM(made(dtype=FLOAT)).in_library
    assert not LM(made(dtype=FLOAT), native=False).in_library


def test_other_machines_and_damaged_files(folder, tmp_path, monkeypatch):
    library = library_module.open_library(build=True)
    monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path))
    tmp_path.chmod(0o700)
    shutil.copy(library.path, tmp_path)
    assert library_module.find_library(tmp_path) == tmp_path / library.path.name
    (tmp_path / library.path.name).write_bytes(library.path.read_bytes()[:-1])
    assert library_module.find_library(tmp_path) is None
    assert not LM(made(dtype=FLOAT)).in_library


@pytest.mark.parametrize('environment', [dict(CXX='false'), dict(CXX='', PATH='')])
def test_without_a_compiler_the_model_is_read_as_before(environment, tmp_path, monkeypatch):
    monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    model = made(dtype=FLOAT)
    lm = LM(model)
    with pytest.warns(UserWarning, match='native forward, not compiled: .*compile'):
        lm.compile()
    assert not lm.in_library
    assert wander(lm, full_logits(model, IDS), IDS, [(9, 0), (1, 0)]) < 1e-4


def test_a_file_that_is_no_library(tmp_path, monkeypatch):
    monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path))
    tmp_path.chmod(0o700)
    content = b'no code'
    name = f'{library_module.library_name()}-{library_module.digest(content)}.so'
    (tmp_path / name).write_bytes(content)
    (tmp_path / name).chmod(0o600)
    with pytest.warns(UserWarning, match='set DECODELAB_CACHE'):
        lm = LM(made(dtype=FLOAT))
    assert not lm.in_library
    assert lm.session().logits(IDS).isfinite().all()


@pytest.fixture
def build(tmp_path, monkeypatch):
    "A function that builds the library with other flags or another source."

    def build(flags=library_module.FLAGS, source=library_module.SOURCE):
        monkeypatch.setattr(library_module, 'FLAGS', flags)
        monkeypatch.setattr(library_module, 'SOURCE', source)
        monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path))
        library_module.library_name.cache_clear()
        return library_module.open_library(build=True)

    yield build
    monkeypatch.undo()
    library_module.library_name.cache_clear()


@pytest.mark.skipif('x86' not in os.uname().machine, reason='flags of x86 processors')
@pytest.mark.parametrize(
    'flag, lanes',
    [('-march=x86-64', 4), ('-mavx2 -mfma', 8), ('-mavx2 -mfma -D__AVX512F__', 16)],
)
def test_vectors_of_other_lengths(flag, lanes, build):
    if 'avx2' in flag and 'avx2' not in Path('/proc/cpuinfo').read_text():
        pytest.skip('this processor has no AVX2')
    flags = ' '.join(library_module.FLAGS).replace('-march=native', flag).replace('-O3', '-O1')
    library = build(flags=flags.split())
    assert library.lanes == lanes
    for config in (LlamaConfig, GPT2Config):
        model = made(config, FLOAT)
        lm = in_library(model)
        assert lm.native.library is library
        steps = [(9, 0), (1, 0), (7, 2), (17, 0)]
        assert wander(lm, full_logits(model, IDS), IDS, steps) < 1e-4


@pytest.mark.parametrize('config, kw', LONG)
def test_the_parts_of_a_pass(config, kw, build):
    "Rows, trees and states in parts of six tokens, not of 96."
    source = library_module.SOURCE.replace('NEAR = 16 * TILE', 'NEAR = TILE')
    assert source != library_module.SOURCE
    library = build(source=source)
    model = made(config, FLOAT, **dict(max_position_embeddings=900) | kw)
    lm = in_library(model)
    assert lm.native.library is library
    check_every_way(lm)
    whole = full_logits(model, IDS)
    assert wander(lm, whole, IDS, [(23, 0), (1, 0), (7, 2), (13, 0)]) < 1e-4
    check_rows(lm, model, [3, 40, 1, 17, 6], 5)


def test_compare_lets_the_library_read(folder, tmp_path, monkeypatch, capsys):
    from decodelab.cli.main import main

    monkeypatch.chdir(tmp_path)
    in_library(made(dtype=FLOAT))  # it is compiled
    line = 'compare --strategies lookup --max-new-tokens 8 --repeats 1 --device cpu --prompts p.txt'
    Path('p.txt').write_text('def f(x):\n')
    assert main([*line.split(), '--out', 'fast']) == 0
    out, err = capsys.readouterr()
    assert 'native forward in C++' in out
    assert err == ''
    monkeypatch.setenv('DECODELAB_CACHE', str(tmp_path / 'none'))
    assert main([*line.split(), '--out', 'plain', '--no-compile']) == 0
    out, err = capsys.readouterr()
    assert 'C++' not in out
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.warns(UserWarning, match='no C\\+\\+ compiler'):
        assert main([*line.split(), '--out', 'eager']) == 0
    assert 'Compiling passes' in capsys.readouterr().err
    assert main([*line.split(), '--out', 'fast', '--no-compile']) == 2  # times of two kinds
    assert 'forward was' in capsys.readouterr().err
