"Trained heads on every kind of target and base, in batches and after interruptions."

import signal
import time

import preloaded
import pytest
import torch

from decodelab import (
    AssistantDrafter,
    ClassifierFreeGuidance,
    DoLa,
    DraftTable,
    DynamicTreeDrafter,
    EagleDrafter,
    FirstOfDrafter,
    FixedLookahead,
    Greedy,
    MedusaDrafter,
    MinP,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    SynthID,
    Temperature,
    TopK,
    TreeDrafter,
    builtin_prompts,
    certify,
    decode,
    decode_batch,
    load,
    load_heads,
    random_lm,
    train_heads,
)
from decodelab.core.driver import Request, Rng
from decodelab.drafters import CascadeDrafter, EagleHeads, MedusaHeads, ParallelDrafter
from decodelab.models.session import LM

KINDS = {'medusa': MedusaHeads, 'eagle': EagleHeads}


def drafters(heads):
    "A chain, a fixed tree and one that grows."
    return [AssistantDrafter(heads), TreeDrafter(heads, (2, 2, 1)), DynamicTreeDrafter(heads, 6, 2)]


@pytest.fixture(scope='module')
def pico():
    return load('pico', dtype=torch.float64)


@pytest.fixture(scope='module')
def fast():
    "In float32, for counts: its tokens are compared with nothing."
    return load('pico', device='cpu')


@pytest.fixture(scope='module')
def trained():
    return {k: load_heads(f'pico-{k}') for k in KINDS}


@pytest.fixture(scope='module')
def plain_texts(pico):
    "Prompt → its greedy tokens."
    return {p: decode(pico, p, Greedy(), 28).tokens for p in builtin_prompts()[:4]}


@pytest.mark.parametrize('kind', KINDS)
def test_greedy_texts_of_the_embedded_target(pico, trained, plain_texts, kind):
    for prompt, plain in plain_texts.items():
        for drafter in drafters(trained[kind]):
            trace = decode(pico, prompt, Speculative(drafter), 28)
            assert trace.tokens == plain
            assert (
                sum(s.target_passes for s in trace.steps) == len(trace.steps) + 1
            )  # the prompt is read by itself, and nothing is read twice


def test_eagle_accepts_more_than_medusa(fast, trained):
    "Counts, not times: the order of the kinds that the sources report."
    passes = {}
    for kind, heads in trained.items():
        strategy = Speculative(AssistantDrafter(heads))
        passes[kind] = sum(len(decode(fast, p, strategy, 40).steps) for p in builtin_prompts()[:8])
    assert passes['eagle'] < passes['medusa'] < 8 * 40


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'number, rules',
    [
        (0, [Temperature(0.7), TopK(20)]),
        (1, [RepetitionPenalty(1.2), MinP(0.05)]),
        (2, [SynthID(range(3, 23))]),
    ],
    ids=['cut', 'penalty', 'mark'],
)
def test_batches_are_the_texts_one_by_one(pico, trained, kind, number, rules):
    "Any two of a kind, a drafter and rules meet: a chain and a tree take turns."
    prompts = builtin_prompts()[:5]
    turn = (number + list(KINDS).index(kind)) % 2
    drafter = drafters(trained[kind])[turn]
    strategy = Speculative(drafter, Sample(rules), lookahead=FixedLookahead(3))
    together = decode_batch(pico, prompts, strategy, 4, max_new_tokens=9)
    assert [t.tokens for t in together] == [
        decode(pico, p, strategy, 9, seed=i).tokens for i, p in enumerate(prompts)
    ]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
    'base', [DoLa([1]), Greedy([ClassifierFreeGuidance(2.0)])], ids=['DoLa', 'guidance']
)
def test_bases_that_read_in_their_own_way(kind, base):
    lm = random_lm(seed=3, layers=3)
    heads = KINDS[kind].of(lm).randomized(lm)
    for drafter in drafters(heads):
        for prompt in ([1], [4, 5, 6, 4, 5]):
            assert (
                decode(lm, prompt, Speculative(drafter, base), 14).tokens
                == decode(lm, prompt, base, 14).tokens
            )


@pytest.mark.parametrize('kind', KINDS)
def test_targets_that_are_not_read_in_parts(kind):
    "By transformers' own forward: a model read by it on purpose, a recurrent one, an encoder–decoder."
    from transformers import MambaConfig, MambaForCausalLM

    slow = random_lm(seed=2, layers=2)
    slow = LM(slow.model, None, 'slow', native=False)
    torch.manual_seed(0)
    mamba = LM(
        MambaForCausalLM(
            MambaConfig(
                vocab_size=64,
                hidden_size=32,
                num_hidden_layers=2,
                state_size=4,
                eos_token_id=None,
                pad_token_id=None,
                bos_token_id=None,
            )
        )
        .double()
        .eval(),
        None,
        'mamba',
    )
    for lm in (slow, mamba):
        heads = KINDS[kind].of(lm).randomized(lm)
        for drafter in drafters(heads):
            for prompt in ([1, 2], [4, 5, 6, 4, 5]):
                assert (
                    decode(lm, prompt, Speculative(drafter), 12).tokens
                    == decode(lm, prompt, Greedy(), 12).tokens
                ), lm.name
    seq2seq = load('pico-seq2seq')
    heads = KINDS[kind].of(seq2seq).randomized(seq2seq)
    for drafter in drafters(heads):
        assert (
            decode(seq2seq, 'forty-two', Speculative(drafter), 12).tokens
            == decode(seq2seq, 'forty-two', Greedy(), 12).tokens
        )


def test_low_precision_and_strict(trained):
    half = load('pico', device='cpu', dtype=torch.bfloat16)
    prompt = builtin_prompts()[1]
    for heads in trained.values():
        assert (
            decode(
                half, prompt, Speculative(AssistantDrafter(heads), deterministic=True), 32
            ).tokens
            == decode(half, prompt, Greedy(), 32).tokens
        )


def test_together_with_other_drafters(pico, trained):
    plain = decode(pico, builtin_prompts()[2], Greedy(), 32).tokens
    both = FirstOfDrafter(MedusaDrafter(trained['medusa']), EagleDrafter(trained['eagle']))
    with pytest.raises(ValueError, match='use one kind of heads'):
        decode(pico, builtin_prompts()[2], Speculative(both), 32)
    session = pico.session()
    session.record_hidden_states(trained['eagle'].layers)
    session.logits([1, 2, 3])
    with pytest.raises(ValueError, match='heads or an early exit, not both'):
        session.exit_logits([1, 2, 3, 4], 4)
    for first in (
        FirstOfDrafter(PromptLookupDrafter(), EagleDrafter(trained['eagle'])),
        ParallelDrafter(AssistantDrafter(trained['eagle']), PromptLookupDrafter()),
    ):
        assert decode(pico, builtin_prompts()[2], Speculative(first), 32).tokens == plain


def test_the_end_of_a_text_and_of_its_budget(pico, trained):
    prompt = builtin_prompts()[0]
    plain = decode(pico, prompt, Greedy(), 30).tokens
    for heads in trained.values():
        for drafter in drafters(heads):
            for n in (1, 2, 7):
                assert decode(pico, prompt, Speculative(drafter), n).tokens == plain[:n]
            stop = Stop(eos=(plain[11],))
            assert (
                decode(pico, prompt, Speculative(drafter), 30, stop=stop).tokens
                == plain[: plain.index(plain[11]) + 1]
            )


@pytest.mark.parametrize('kind', KINDS)
def test_certificates(trained, kind):
    for scheme in (
        Speculative(AssistantDrafter(trained[kind]), Sample(), lookahead=FixedLookahead(3)),
        Speculative(TreeDrafter(trained[kind], (2, 2)), Sample([Temperature(0.8)])),
    ):
        certificate = certify(scheme, samples=300)
        assert certificate.lossless, certificate
        assert [c.kind for c in certificate.checks] == ['exact', 'every token'], certificate
    assert certify(Speculative(TreeDrafter(trained[kind], (2, 2))), max_new_tokens=8).lossless


def test_a_state_from_the_wrong_position_would_be_noticed(pico, fast, trained):
    "Not the text, which stays the target's own, but the acceptance falls where heads are fed the state before the newest."

    class Late(type(trained['eagle']).Scorer):
        def prepare_round(self):
            buffer = self.features.buffer
            self.features.buffer = buffer.roll(1, 0)
            super().prepare_round()
            self.features.buffer = buffer

    class LateHeads(EagleHeads):
        Scorer = Late

    late = LateHeads(**{k: v for k, v in trained['eagle'].config.items() if k != 'kind'})
    late.load_state_dict(trained['eagle'].state_dict())
    prompts = builtin_prompts()[:4]
    steps = lambda heads: sum(
        len(decode(fast, p, Speculative(AssistantDrafter(heads)), 32).steps) for p in prompts
    )
    assert steps(late) > 1.5 * steps(trained['eagle'])
    assert (
        decode(pico, prompts[0], Speculative(AssistantDrafter(late)), 20).tokens
        == decode(pico, prompts[0], Greedy(), 20).tokens
    )


RUN = '''
import sys, torch
from decodelab.drafters import EagleHeads; from decodelab import random_lm, train_heads
toy = random_lm(seed=2, layers=2, scale=.3, dtype=torch.float32)
torch.manual_seed(0)
heads = EagleHeads.of(toy, heads=2, steps=2)
train_heads(toy, torch.randint(64, (9000,), generator=torch.Generator().manual_seed(0)), heads, sys.argv[1], tokens=16384, rows=4, length=64, own_batches=1)
'''


def test_training_goes_on_after_a_kill(tmp_path):
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    run = lambda folder: preloaded.start(['-c', RUN, folder])
    child = run(whole)
    assert child.communicate(240)
    assert child.returncode == 0
    child = run(killed)
    while child.poll() is None and not (killed / 'checkpoint.safetensors').exists():
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child = run(killed)
    assert child.communicate(240)
    assert child.returncode == 0
    a, b = (load_heads(folder) for folder in (whole, killed))
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters()))


def test_training_leaves_the_target_alone(tmp_path):
    toy = random_lm(seed=2, layers=2, scale=0.3, dtype=torch.float32)
    before = {k: v.clone() for k, v in toy.model.state_dict().items()}
    train_heads(
        toy,
        torch.randint(64, (4000,), generator=torch.Generator().manual_seed(0)),
        MedusaHeads.of(toy, 2, own=True),
        tmp_path,
        tokens=2048,
        rows=4,
        length=64,
    )
    assert all(torch.equal(v, before[k]) for k, v in toy.model.state_dict().items())
    assert all(p.grad is None for p in toy.model.parameters())


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float64], ids=str)
def test_targets_of_any_precision_can_be_trained_for(tmp_path, dtype):
    toy = random_lm(seed=2, layers=2, scale=0.3, dtype=dtype)
    for kind in KINDS.values():
        heads = train_heads(
            toy,
            torch.randint(64, (4000,), generator=torch.Generator().manual_seed(0)),
            kind.of(toy),
            tmp_path / kind.__name__,
            tokens=2048,
            rows=4,
            length=64,
            own_batches=1,
        )
        assert all(p.dtype == torch.float32 for p in heads.parameters())
        assert decode(toy, [1, 2, 3], Speculative(AssistantDrafter(heads)), 8).steps


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match='has no heads.json'):
        load_heads(tmp_path)
    (tmp_path / 'heads.json').write_text('{}')
    with pytest.raises(ValueError, match='no heads.safetensors'):
        load_heads(tmp_path)


def test_tools_that_take_any_drafter(pico, trained):
    """Draft tables draft at every place what a text begun there would; watches see the heads.

    What means a draft model elsewhere refuses heads.
    """
    from decodelab.hf.generation_config import check_assistant
    from decodelab.tuning.round_breakdown import round_parts
    from decodelab.tuning.search import vllm_settings

    prompt = pico.encode(builtin_prompts()[1])
    for heads in trained.values():
        drafter = AssistantDrafter(heads)
        table = DraftTable.build(pico, drafter, [prompt], 20, k=4)
        request = Request(pico, prompt, 30, Rng(0))
        for n in (0, 3, 4, 11):
            drafting = drafter.start(request, Greedy(), Greedy().bind(request))
            fresh = drafting.draft(
                prompt + table.sequences[0][:n], lambda i, row, token: i < 4, Rng(0)
            ).tokens
            assert list(table.records[0][n].tokens)[:4] == fresh
        assert 'draft forward' in str(round_parts(pico, [prompt], Speculative(drafter)))
        for call in (
            lambda: CascadeDrafter(heads, PromptLookupDrafter()),
            lambda: check_assistant(drafter, Greedy()),
            lambda: vllm_settings(FixedLookahead(4), drafter, FixedLookahead(4)),
        ):
            with pytest.raises(ValueError):
                call()
