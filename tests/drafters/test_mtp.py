"Multi-token-prediction layers and single-position assistants, with more models than a notebook has, and exact laws."

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
)
from transformers.modeling_layers import MtpModel

from decodelab import (
    LM,
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    RepetitionPenalty,
    Sample,
    Speculative,
    Temperature,
    TopP,
    decode,
    decode_batch,
)
from decodelab.drafters.mtp import MtpDrafter, MtpHeads, mtp_of
from decodelab.drafters.single_position import (
    SinglePositionDrafter,
    SinglePositionHeads,
    reuse_config,
)
from decodelab.evaluate.part_checks import check_drafter
from tests.fuzz.law import TOLERANCE, distance_from_base

SIZES = dict(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    initializer_range=0.15,
    eos_token_id=None,
    bos_token_id=None,
    pad_token_id=None,
)
GLM = dict(
    head_dim=8,
    moe_intermediate_size=16,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_nextn_predict_layers=3,
)
PROMPT = [3, 4, 5, 3, 4]


def glm(noise=0.3, dtype=torch.float64, seed=0, **sizes):
    "`(model, its MTP layers)` of GLM-4.5's kind, with random weights."
    config = AutoConfig.for_model('glm4_moe', **SIZES | GLM | sizes)
    config._experts_implementation = 'eager'  # the grouped kernel has no float64
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        mtp = MtpModel(model, config.num_mtp_layers).eval()
        mtp.layers.to(dtype)
        for part in (model.model.layers, mtp.layers):
            for name, x in part.state_dict().items():
                if x.ndim > 1:
                    x.copy_(torch.randn_like(x) * noise)
                elif 'bias' in name:
                    x.zero_()
                if 'eh_proj' in name:
                    x += torch.eye(*x.shape)
    return model, mtp


def gemma(shared=2, seed=0, dtype=torch.float64, ordered=False, **sizes):
    "`(target, assistant)` with random weights."
    sizes = dict(vocab_size=16, initializer_range=0.1) | sizes

    def text(layers, shared, width, per):
        return Gemma4TextConfig(
            hidden_size=width,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            global_head_dim=8,
            max_position_embeddings=256,
            sliding_window=6,
            num_kv_shared_layers=shared,
            layer_types=['sliding_attention', 'full_attention'] * (layers // 2),
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=None,
            hidden_size_per_layer_input=per,
            vocab_size_per_layer_input=per and sizes['vocab_size'],
            **sizes,
        )

    more = (
        dict(use_ordered_embeddings=True, num_centroids=4, centroid_intermediate_top_k=2)
        if ordered
        else {}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        target = Gemma4ForCausalLM(text(4, shared, 32, 8 * bool(shared))).to(dtype).eval()
        assistant = (
            Gemma4AssistantForCausalLM(
                reuse_config(
                    Gemma4AssistantConfig(
                        text_config=text(2, 2, 16, 0), backbone_hidden_size=32, **more
                    )
                )
            )
            .to(dtype)
            .eval()
        )
        if ordered:
            assistant.masked_embedding.token_ordering.copy_(torch.randperm(sizes['vocab_size']))
    return LM(target, name='gemma4'), assistant


def distance(strategy, lm, prompt, n):
    "How far the law of the first `n` tokens is from plain sampling, by every outcome of every draw."
    far, exercised = distance_from_base(strategy, lm, prompt, n)
    assert not exercised.missing, exercised
    return far


def names_of_glm(mtp, depth):
    """The tensors of MTP layers under the names of GLM-4.5's checkpoints.

    Layers behind the last, experts one by one.
    """
    for k, layer in enumerate(mtp.layers):
        for name, x in layer.state_dict().items():
            name = f'model.layers.{depth + k}.' + name.replace('mtp_block.', '').replace(
                'post_norm', 'shared_head.norm'
            )
            if not name.endswith(('gate_up_proj', 'down_proj')) or x.ndim < 3:
                yield name, x.clone()
            else:
                parts = (
                    {'gate_proj': x[:, : x.shape[1] // 2], 'up_proj': x[:, x.shape[1] // 2 :]}
                    if name.endswith('gate_up_proj')
                    else {'down_proj': x}
                )
                for part, values in parts.items():
                    for e, value in enumerate(values):
                        yield f'{name.rpartition(".")[0]}.{e}.{part}.weight', value.clone()


@pytest.fixture(scope='module')
def from_checkpoint(tmp_path_factory):
    "`(model, its MTP layers)`: GLM-4.5 Air has 46 layers, and its MTP layer is stored as number 46."
    folder = tmp_path_factory.mktemp('glm')
    model, mtp = glm(
        0.06, hidden_size=16, intermediate_size=16, num_hidden_layers=46, num_nextn_predict_layers=1
    )
    model.save_pretrained(folder)
    save_file(
        load_file(folder / 'model.safetensors') | dict(names_of_glm(mtp, 46)),
        folder / 'model.safetensors',
        metadata=dict(format='pt'),
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, experts_implementation='eager'
    ).eval(), mtp


def test_layers_behind_the_last_one_of_a_checkpoint(from_checkpoint):
    "Ours drafts as transformers' own does."
    again, mtp = from_checkpoint
    lm = LM(again, name='glm')
    result = mtp_of(lm)
    assert mtp_of(lm) is result
    assert all(
        torch.equal(x, result.layers.state_dict()[name])
        for name, x in mtp.layers.state_dict().items()
    )
    trace = decode(lm, PROMPT, Speculative(MtpDrafter(), lookahead=FixedLookahead(1)), 12)
    assert trace.tokens == decode(lm, PROMPT, Greedy(), 12).tokens
    assert (
        trace.tokens
        == again.generate(torch.tensor([PROMPT]), use_mtp=True, do_sample=False, max_new_tokens=12)[
            0, 5:
        ].tolist()
    )


@pytest.mark.parametrize('rules', [[], [Temperature(0.7), TopP(0.95)]])
def test_mtp_samples(rules):
    model, mtp = glm(vocab_size=3)
    strategy = Speculative(MtpDrafter(mtp), Sample(rules), lookahead=FixedLookahead(3))
    assert distance(strategy, LM(model), [1, 2, 1], 3) < TOLERANCE


@pytest.mark.parametrize('shared', [2, 0])
def test_single_position_samples(shared):
    "Three tokens, two of them drafted, of a target that shares keys between layers and of one that does not."
    lm, assistant = gemma(shared, vocab_size=3, initializer_range=0.2)
    strategy = Speculative(
        SinglePositionDrafter(assistant), Sample([Temperature(0.8)]), lookahead=FixedLookahead(2)
    )
    assert distance(strategy, lm, [1, 2, 1], 3) < TOLERANCE


class Likeliest(MtpDrafter):
    "What transformers does for a single position: the likeliest token, reported as drawn from the row."

    def start(self, request, base, target):
        drafting = super().start(request, base, target)
        drafting.base = Greedy()
        return drafting


def test_the_fault_of_transformers_would_be_noticed():
    model, mtp = glm(vocab_size=3)
    strategy = Speculative(Likeliest(mtp), Sample(), lookahead=FixedLookahead(3))
    assert distance(strategy, LM(model), [1, 2, 1], 3) > 0.01


def test_contracts():
    """Rows that tokens were drawn from, ids of the vocabulary, models left as they were.

    For both kinds of bases. A row that was not drawn from also changes the law, which is tested exactly above.
    """
    model, mtp = glm()
    pairs = [(LM(model), MtpDrafter(mtp))] + [
        (lm, SinglePositionDrafter(a)) for lm, a in (gemma(2), gemma(0), gemma(2, ordered=True))
    ]
    for lm, drafter in pairs:
        for base in (Greedy(), Sample([Temperature(0.7), TopP(0.9), RepetitionPenalty(1.2)])):
            check_drafter(drafter, lm, [[1], PROMPT], base, draws=250)


def test_sampled_batches_are_the_sequences_one_by_one():
    model, mtp = glm(0.06)
    pairs = [(LM(model), MtpDrafter(mtp))] + [
        (lm, SinglePositionDrafter(a)) for lm, a in (gemma(2), gemma(0))
    ]
    texts = [[1], PROMPT, list(range(12))]
    for lm, drafter in pairs:
        strategy = Speculative(drafter, Sample([Temperature(0.8)]), lookahead=FixedLookahead(3))
        batch = decode_batch(lm, texts, strategy, batch_size=3, max_new_tokens=16, seed=5)
        assert [t.tokens for t in batch] == [
            decode(lm, t, strategy, 16, seed=5 + i).tokens for i, t in enumerate(texts)
        ]


def test_an_assistant_with_clusters_of_tokens():
    "Of most tokens its row says only that they are unlikely; the text is the plain one."
    lm, assistant = gemma(ordered=True)
    for prompt in ([1], PROMPT):
        assert (
            decode(
                lm,
                prompt,
                Speculative(SinglePositionDrafter(assistant), lookahead=FixedLookahead(3)),
                16,
            ).tokens
            == decode(lm, prompt, Greedy(), 16).tokens
        )


def test_both_kinds_of_sessions_draft_the_same(monkeypatch):
    "A target that shares keys is read with a cache that grows as it is with one that forgets, in fewer passes."
    lm, assistant = gemma(2)
    strategy = Speculative(SinglePositionDrafter(assistant), lookahead=FixedLookahead(3))
    monkeypatch.setattr('decodelab.models.session.cache_kind', lambda model: 'snapshots')
    slow = decode(lm, PROMPT, strategy, 24)
    monkeypatch.setattr('decodelab.models.session.cache_kind', lambda model: 'growing')
    quick = decode(lm, PROMPT, strategy, 24)
    assert [s.draft_tokens for s in slow.steps] == [s.draft_tokens for s in quick.steps]
    assert slow.tokens == quick.tokens
    assert quick.metrics()['target_passes'] < slow.metrics()['target_passes']


def test_low_precision_and_strict():
    "bfloat16 layers and assistants run, and strict decoding is plain decoding to the last token."
    model, mtp = glm(dtype=torch.bfloat16)
    pairs = [(LM(model), MtpDrafter(mtp))] + [
        (lm, SinglePositionDrafter(a))
        for lm, a in (gemma(2, dtype=torch.bfloat16), gemma(0, dtype=torch.bfloat16))
    ]
    for lm, drafter in pairs:
        trace = decode(
            lm, PROMPT, Speculative(drafter, lookahead=FixedLookahead(3), deterministic=True), 24
        )
        assert trace.tokens == decode(lm, PROMPT, Greedy(), 24).tokens
        assert trace.metrics()['drafted'] > 0


def test_an_assistant_may_come_as_a_language_model():
    "What `LM` wraps is taken out; heads work in the general drafter as well."
    lm, assistant = gemma(2)
    assert SinglePositionHeads(LM(assistant)).assistant is assistant
    for drafter in (
        AssistantDrafter(SinglePositionHeads(assistant)),
        SinglePositionDrafter(LM(assistant)),
    ):
        assert (
            decode(lm, PROMPT, Speculative(drafter), 8).tokens
            == decode(lm, PROMPT, Greedy(), 8).tokens
        )
    model, mtp = glm()
    assert (
        decode(LM(model), PROMPT, Speculative(AssistantDrafter(MtpHeads(mtp))), 8).tokens
        == decode(LM(model), PROMPT, Greedy(), 8).tokens
    )


def test_the_first_door(from_checkpoint):
    """`generate` with transformers' own keywords.

    MTP layers from a checkpoint, and a single-position assistant.
    """
    from decodelab import generate

    again, _ = from_checkpoint
    ids = torch.tensor([PROMPT])
    want = again.generate(ids, do_sample=False, max_new_tokens=12)
    assert torch.equal(generate(again, ids, use_mtp=True, max_new_tokens=12), want)
    assert torch.equal(
        generate(again, ids, use_mtp=True, prompt_lookup_num_tokens=3, max_new_tokens=12), want
    )
    assert torch.equal(generate(again, ids, use_mtp=False, max_new_tokens=12), want)
    beams = dict(num_beams=2, max_new_tokens=12)
    with pytest.warns(UserWarning, match='the drafts are left out'):
        searched = generate(again, ids, use_mtp=True, **beams)
    assert torch.equal(searched, generate(again, ids, **beams))
    with pytest.raises(ValueError, match='the drafts are left out'):
        generate(again, ids, use_mtp=True, strict=True, **beams)
    lm, assistant = gemma(2)
    want = lm.model.generate(ids, do_sample=False, max_new_tokens=12)
    assert torch.equal(generate(lm.model, ids, assistant_model=assistant, max_new_tokens=12), want)
    assert torch.equal(
        generate(
            lm.model,
            ids,
            assistant_model=assistant,
            num_assistant_tokens=4,
            assistant_confidence_threshold=0,
            max_new_tokens=12,
        ),
        want,
    )
