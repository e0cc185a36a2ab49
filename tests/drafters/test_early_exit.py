"Early exit on every family in float64: the same tokens, reuse, distributions, models left unchanged."

import pytest
import torch
from repo import ROOT
from transformers import DynamicCache

from decodelab import (
    LM,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    MinP,
    RepetitionPenalty,
    Sample,
    Speculative,
    Stop,
    Temperature,
    TopP,
    certify,
    decode,
    decode_batch,
    load,
    random_lm,
)
from decodelab.evaluate.certify import ARCHITECTURES, statistical_check
from decodelab.logits import Mirostat
from decodelab.models.partial_forward import PartialForward, attention_masks

DATA = ROOT.parent / 'shared' / 'data' / 'models'
DEPTH = 4
every_family = pytest.mark.parametrize('family', ARCHITECTURES)


def state(model):
    """All there is to a model.

    Weights by value, modules and parameters by identity, attributes by name, configs by value.
    """
    return (
        {n: t.clone() for n, t in [*model.state_dict().items(), *model.named_buffers()]},
        [(n, id(m), sorted(vars(m)), len(m._forward_hooks)) for n, m in model.named_modules()],
        [(n, id(p), p._version) for n, p in model.named_parameters()],
        model.config.to_dict(),
        id(model.config),
        model.generation_config.to_dict(),
    )


def assert_same_state(before, after):
    assert before[0].keys() == after[0].keys()
    assert all(torch.equal(t, after[0][n]) for n, t in before[0].items())
    assert before[1:] == after[1:]


class Breaks:
    "A rule that raises once the text has `n` tokens."

    def __init__(self, n, error):
        self.n, self.error = n, error

    def __call__(self, ids, scores):
        if ids.shape[-1] >= self.n:
            raise self.error
        return scores


@every_family
def test_a_model_in_parts_is_the_model(family):
    lm = random_lm(family, layers=DEPTH)
    ids = torch.randint(1, 64, (2, 15), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = lm.model(ids).logits
    for parts in {lm.layers, PartialForward(lm.model)}:  # by hand and through views, where both can
        for layer in range(1, DEPTH):
            cache, out = DynamicCache(), []
            with torch.no_grad():
                for a, b in ((0, 7), (7, 8), (8, 15)):
                    where = torch.arange(a, b).expand(2, -1)
                    looks = attention_masks(lm.text_config, torch.arange(b), where)
                    x = parts.forward_positions(ids[:, a:b], cache, where, looks, 0, layer)
                    out.append(
                        parts.head(parts.forward_positions(x, cache, where, looks, layer, DEPTH))
                    )
            assert torch.allclose(
                torch.cat(out, 1), want, atol=1e-5 if family == 'gemma2' else 1e-12, rtol=0
            )  # its eager softmax is float32


@every_family
def test_greedy_texts_are_plain_greedy_texts_and_the_model_is_untouched(family):
    lm = random_lm(family, layers=DEPTH)
    before = state(lm.model)
    for prompt in ([7], list(range(1, 20))):
        plain = decode(lm, prompt, Greedy(), 24).tokens
        theirs = lm.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
        )
        assert plain == theirs[0, len(prompt) :].tolist()
        for layer in range(1, DEPTH):
            trace = decode(
                lm,
                prompt,
                Speculative(EarlyExitDrafter(layer), lookahead=FixedLookahead(1 + layer)),
                24,
            )
            assert trace.tokens == plain
            assert all(s.target_passes == 1 and s.draft_passes == s.drafted for s in trace.steps)
    assert_same_state(before, state(lm.model))


@every_family
@pytest.mark.parametrize(
    'error', [RuntimeError('enough'), KeyboardInterrupt()], ids=['raises', 'interrupted']
)
def test_a_call_that_breaks_leaves_the_model_as_it_was(family, error):
    # transformers 5.23 leaves GPT-2, GPT-NeoX and OPT broken after assistant_early_exit: every later
    # generate raises
    lm = random_lm(family, layers=3)
    before, plain = state(lm.model), decode(lm, [1, 2], Greedy(), 10).tokens
    for n in (2, 3, 6):
        with pytest.raises(type(error)):
            decode(
                lm, [1, 2], Speculative(EarlyExitDrafter(1), base=Greedy([Breaks(n, error)])), 10
            )
    layer = next(m for m in lm.model.modules() if isinstance(m, torch.nn.ModuleList))[1]

    def stop(*args):
        raise error

    hook = layer.register_forward_pre_hook(stop)  # in the middle of a verification
    with pytest.raises(type(error)):
        decode(lm, [1, 2], Speculative(EarlyExitDrafter(1)), 10)
    hook.remove()
    assert_same_state(before, state(lm.model))
    assert decode(lm, [1, 2], Speculative(EarlyExitDrafter(1)), 10).tokens == plain
    assert (
        lm.model.generate(
            torch.tensor([[1, 2]]), max_new_tokens=10, do_sample=False, pad_token_id=0
        )[0, 2:].tolist()
        == plain
    )


@pytest.mark.parametrize('family', ['llama', 'gpt2', 'gemma3_text'])
def test_samples_follow_the_base(family):
    lm = random_lm(family, vocab_size=6, layers=3, scale=0.3)
    check = statistical_check(
        Speculative(
            EarlyExitDrafter(2), base=Sample([Temperature(0.8)]), lookahead=FixedLookahead(2)
        ),
        lm,
        [1, 2, 1],
        samples=500,
    )
    assert check.passed, check.message


def test_certificates():
    for strategy in (
        Speculative(EarlyExitDrafter(1), base=Sample([TopP(0.9)]), lookahead=FixedLookahead(3)),
        Speculative(EarlyExitDrafter(2), base=Sample([MinP(0.1)])),
    ):
        certificate = certify(strategy, samples=300)
        assert certificate.lossless
        assert certificate.distance == 0


def test_rules_and_stops_reach_into_the_block():
    lm = random_lm('gpt2', layers=3)
    plain = decode(lm, [1, 2, 3], Greedy(), 30).tokens
    for stop in (
        Stop(eos=(plain[7],)),
        Stop(when=lambda ids: len(ids) == 11),
        Stop(strings=(f'<{plain[13]}>',)),
    ):
        a, b = (
            decode(lm, [1, 2, 3], s, 30, stop=stop)
            for s in (Greedy(), Speculative(EarlyExitDrafter(2)))
        )
        assert (a.tokens, a.stopped) == (b.tokens, b.stopped)
    for rules in ([RepetitionPenalty(1.4)], [Mirostat(3.0)]):
        assert (
            decode(lm, [5], Speculative(EarlyExitDrafter(1), base=Greedy(rules)), 30).tokens
            == decode(lm, [5], Greedy(rules), 30).tokens
        )


@pytest.mark.parametrize('layer', [0, 3, 99, -1, 1.0, True, None, '1'])
def test_an_exit_layer_out_of_range_is_an_error(layer):
    for n in (1, 8):
        with pytest.raises(ValueError, match='integer from 1 to 2'):
            decode(random_lm(layers=3), [1], Speculative(EarlyExitDrafter(layer)), n)


def test_every_layer_reads_each_token_once():
    lm, prompt = random_lm('gpt_neox', layers=3), [1, 2, 3]
    lm.layers  # tries the model first
    fed = [0] * 3

    def count(i):
        return lambda module, args, out: fed.__setitem__(i, fed[i] + args[0].shape[1])

    hooks = [
        layer.register_forward_hook(count(i)) for i, layer in enumerate(lm.model.gpt_neox.layers)
    ]
    trace = decode(lm, prompt, Speculative(EarlyExitDrafter(1), lookahead=FixedLookahead(4)), 40)
    for hook in hooks:
        hook.remove()
    assert fed == [len(prompt) - 1 + sum(s.drafted + 1 for s in trace.steps)] * 3


@every_family
def test_texts_in_a_batch_leave_early_together(family):
    lm = random_lm(family, layers=3)
    prompts = [[1], [3, 4, 5], list(range(1, 30)), [9, 9]]
    traces = decode_batch(
        lm,
        prompts,
        Speculative(EarlyExitDrafter(1), lookahead=FixedLookahead(3)),
        max_new_tokens=12,
        batch_size=3,
    )
    assert [t.tokens for t in traces] == [decode(lm, p, Greedy(), 12).tokens for p in prompts]


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('attention', ['sdpa', 'eager'])
def test_other_precisions_and_attentions_are_read(dtype, attention):
    for family in ('llama', 'gpt2', 'gemma3_text'):
        model = random_lm(family, layers=3, dtype=dtype).model
        model.set_attn_implementation(attention)
        lm = LM(model)
        trace = decode(lm, [1, 2, 3], Speculative(EarlyExitDrafter(1)), 16)
        assert len(trace.tokens) == 16
        if dtype == torch.float32:
            assert trace.tokens == decode(lm, [1, 2, 3], Greedy(), 16).tokens


@pytest.mark.skipif(not DATA.is_dir(), reason='no folder shared/data/models beside the checkout')
@pytest.mark.parametrize('name', ['stories260K', 'babyllama361'])
def test_real_checkpoints(name):
    lm = load(DATA / name, device='cpu', dtype=torch.float64)
    for prompt in ('Once upon a time', 'The sun was'):
        plain = decode(lm, prompt, Greedy(), 24).tokens
        for layer in range(1, lm.depth, max(1, lm.depth // 4)):
            assert (
                decode(
                    lm,
                    prompt,
                    Speculative(EarlyExitDrafter(layer), lookahead=FixedLookahead(3)),
                    24,
                ).tokens
                == plain
            )
