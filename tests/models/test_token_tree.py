"Token trees and hidden states of chosen layers against chains read one by one."

import random
from dataclasses import replace

import pytest
import torch

from decodelab import LM, Greedy, decode, decode_batch, random_lm
from decodelab.core.trace import Step
from decodelab.evaluate.certify import ARCHITECTURES
from decodelab.models.compile import CompiledForward
from decodelab.models.tree_attention import TokenTree
from tests.random_prompts import random_prompts

LOOSE = ('gemma2',)  # its eager attention takes the softmax in float32
ENGINES = [
    (family, native)
    for family in ARCHITECTURES
    for native in (
        (True, False)
        if family in ('llama', 'mistral', 'qwen3', 'phi3', 'gpt2', 'gpt_neox')
        else (True,)
    )
]
every = pytest.mark.parametrize('family, native', ENGINES, ids=lambda v: str(v))


def lm_of(family, native, layers=2):
    return LM(random_lm(family, layers=layers).model, name=f'random-{family}', native=native)


def path_to(parents, j):
    return [] if j < 0 else path_to(parents, parents[j]) + [j]


def random_tree(draw, most, vocab_size=64):
    n = draw.randrange(most + 1)
    return [draw.randrange(vocab_size) for _ in range(n)], [draw.randrange(-1, j) for j in range(n)]


def by_chains(lm, ids, tokens, parents):
    "The oracle: each path in a session of its own."
    rows = []
    for j in range(-1, len(tokens)):
        path = [tokens[i] for i in path_to(parents, j)]
        rows.append(lm.session().logits(ids + path))
    return torch.cat(rows)


def close(got, want, family):
    return (got - want).abs().max() <= (1e-6 if family in LOOSE else 1e-12) * want.abs().max()


@every
def test_random_trees(family, native):
    "Random trees behind texts that grow, shrink and diverge; kept or not; with other reads in between."
    lm, draw = lm_of(family, native), random.Random(f'{family}{native}')
    s, text = lm.session(), [1, 2, 3]
    for _ in range(14):
        tokens, parents = random_tree(draw, 8)
        passes = s.passes
        assert close(
            s.tree_logits(text, tokens, parents), by_chains(lm, text, tokens, parents), family
        )
        assert s.passes == passes + 1
        assert s.rows == [text]
        if draw.random() < 0.7:
            path = path_to(parents, draw.randrange(-1, len(tokens)))
            assert s.accept_path(path) is s
            assert s.rows == [text + [tokens[j] for j in path]]
            assert s.passes == passes + 1
            if draw.random() < 0.7:
                text = list(s.rows[0])
        what = draw.randrange(4)
        if what == 0:
            assert close(
                s.logits(text + [7, 8], last=3), lm.session().logits(text + [7, 8], last=3), family
            )
        if what == 1:
            assert close(
                s.exit_logits(text + [9], 1), lm.session().exit_logits(text + [9], 1), family
            )
        if what == 2:
            s.rollback(draw.randrange(len(s)))
        text = text[: max(1, len(text) - draw.randrange(4))] + [
            draw.randrange(64) for _ in range(draw.randrange(4))
        ]
    assert close(s.logits(text), lm.session().logits(text), family)


@pytest.mark.parametrize('family', ['llama', 'mistral', 'gpt2', 'gemma2', 'gemma3_text', 'mixtral'])
def test_only_the_path_is_moved(family):
    "The passes feed each token once, and after keep_path the next pass feeds one."
    lm, fed = lm_of(family, False), []
    s, ids = lm.session(), list(range(1, 20))
    layer = next(m for m in lm.model.modules() if isinstance(m, torch.nn.ModuleList))[0]
    hook = layer.register_forward_hook(
        lambda module, args, kwargs, out: fed.append(
            (args[0] if args else kwargs['hidden_states']).shape[1]
        ),
        with_kwargs=True,
    )
    s.logits(ids)
    s.tree_logits(ids + [4], [1, 2, 3, 4, 5], [-1, -1, 1, 0, 2])
    s.accept_path([1, 2, 4])
    got = s.logits(ids + [4, 2, 3, 5, 6])
    hook.remove()
    assert fed == [19, 6, 1]
    assert close(got, lm.session().logits(ids + [4, 2, 3, 5, 6]), family)


@pytest.mark.parametrize('native', [True, False])
def test_a_chain_is_a_verification(native):
    "A tree without branches gives the rows of logits(ids + tokens, last); an empty one those of logits(ids)."
    lm, ids = lm_of('llama', native), list(range(1, 12))
    chain = lm.session().tree_logits(ids, [5, 6, 7], [-1, 0, 1])
    assert close(chain, lm.session().logits(ids + [5, 6, 7], last=4), 'llama')
    assert close(lm.session().tree_logits(ids, [], []), lm.session().logits(ids), 'llama')


def test_wide_trees_outgrow_the_buffer():
    lm, ids = lm_of('llama', True), list(range(1, 60))
    tokens = list(range(64))
    parents = [(j - 1) // 3 if j > 2 else -1 for j in range(64)]
    s = lm.session()
    assert close(s.tree_logits(ids, tokens, parents), by_chains(lm, ids, tokens, parents), 'llama')
    path = path_to(parents, 63)
    longer = ids + [tokens[j] for j in path]
    assert len(path) > 3
    assert close(
        s.accept_path(path).logits(longer + [1]), lm.session().logits(longer + [1]), 'llama'
    )


def test_float32_and_a_compiled_forward():
    "Trees run uncompiled between compiled passes; no graph is made for them."
    lm = random_lm('gpt2', dtype=torch.float32)
    lm.native = CompiledForward(lm.native, width=1)
    lm.native.run_graph = lambda x, *args: (
        None
    )  # no compiler needed: that graphs read the same cache is tested with them
    ids = list(range(1, 30))
    s = lm.session()
    got = s.tree_logits(ids, [5, 6, 7], [-1, 0, 0])
    assert got.dtype == torch.float32
    assert torch.allclose(got, by_chains(lm, ids, [5, 6, 7], [-1, 0, 0]), atol=1e-4)
    assert not lm.native.graphs
    assert torch.allclose(
        s.accept_path([0, 2]).logits(ids + [5, 7, 1]),
        lm.session().logits(ids + [5, 7, 1]),
        atol=1e-4,
    )


class Looking:
    "Greedy search that asks for hidden states, trees, early rows and logits in turn, and compares each with a session of its own."

    def __init__(self, lm, layers):
        self.lm, self.layers = lm, layers

    def decode(self, request):
        ids = list(request.prompt)
        s = request.session()
        draw = random.Random(len(request.prompt))
        second = (
            request.session() if len(ids) % 3 == 0 else s
        )  # opened while others are in the middle of a pass
        while True:
            layers = self.layers if draw.random() < 0.7 else [1]
            got, fresh = s.hidden_states(ids, layers, last=1), self.lm.session()
            assert torch.allclose(
                got, fresh.hidden_states(ids, layers, last=1), atol=1e-6, rtol=1e-6
            )
            what, (tokens, parents) = draw.randrange(4), random_tree(draw, 6)
            if what == 0:
                assert torch.allclose(
                    second.exit_logits(ids, 1), fresh.exit_logits(ids, 1), atol=1e-6
                )
            if what == 1:
                assert torch.allclose(
                    second.tree_logits(ids, tokens, parents),
                    fresh.tree_logits(ids, tokens, parents),
                    atol=1e-6,
                )
                path = path_to(parents, len(tokens) - 1)
                second.accept_path(path)
                longer = ids + [tokens[j] for j in path] + [3]
                assert torch.allclose(second.logits(longer), fresh.logits(longer), atol=1e-6)
            ids.append(int(second.logits(ids).argmax()))
            yield Step(ids[-1:])


@pytest.mark.parametrize(
    'family, native',
    [
        ('llama', True),
        ('llama', False),
        ('mistral', True),
        ('gpt2', True),
        ('gemma2', True),
        ('opt', True),
    ],
)
def test_in_a_batch(family, native):
    lm = lm_of(family, native, layers=3)
    texts = random_prompts((1, 3, 70, 5, 12, 6, 140))
    plain = [decode(lm, p, Greedy(), 8).tokens for p in texts]
    for size in (1, 3, 7):
        batch = decode_batch(lm, texts, Looking(lm, [2, 3]), size, 8)
        assert [t.tokens for t in batch] == plain
        assert not batch.unbatched
    assert sum(c['passes'] for c in batch.costs) < 0.8 * sum(
        c['rows'] for c in batch.costs
    )  # though they seldom ask for the same


@pytest.mark.parametrize('size', [1, 4])
def test_texts_that_look_at_the_same_layers_are_joined(size):
    lm, texts = lm_of('llama', True, layers=3), [[i] * (4 + i) for i in range(1, 5)]

    class Both:
        def decode(self, request):
            ids, s = list(request.prompt), request.session()
            while True:
                passes, state = s.passes, s.hidden_states(ids, [1, 3])[:, -1]
                assert s.passes == passes + 1
                ids.append(int(self.lm.layers.head(state[None])[0, 0].argmax()))
                yield Step(ids[-1:])

    Both.lm = lm
    batch = decode_batch(lm, texts, Both(), size, 6)
    assert [t.tokens for t in batch] == [decode(lm, p, Greedy(), 6).tokens for p in texts]
    # the layers looked at are all in one pass
    assert batch.costs[0]['passes'] == 6 * 4 // size
    assert batch.costs[0]['rows'] == 6 * 4


def test_a_slot_that_moves_keeps_its_tree():
    "Texts that end while another has an unkept tree."
    lm = lm_of('llama', True)

    class Uneven:
        def decode(self, request):
            ids, s = list(request.prompt), request.session()
            while True:
                best = int(lm.session().logits(ids).argmax())
                s.tree_logits(ids, [1, best, 2], [-1, -1, 1])
                if len(request.prompt) > 2:
                    request.session().logits(
                        [5] * 90
                    )  # others end, and the pool grows, before the path is kept
                s.accept_path([1])
                ids.append(best)
                assert torch.allclose(
                    s.logits(ids + [9]), lm.session().logits(ids + [9]), atol=1e-10
                )
                yield Step([best])

    texts = [[3], [4, 5], [6, 7, 8], [9], [1, 2, 3, 4], [5, 6]]
    for size in (2, 3, 6):
        assert [t.tokens for t in decode_batch(lm, texts, Uneven(), size, 5)] == [
            decode(lm, p, Greedy(), 5).tokens for p in texts
        ]


def test_a_pool_that_is_laid_out_anew_keeps_the_nodes():
    "A second text joins while the first has a tree that reaches beyond its own length."
    lm, other = lm_of('llama', True), lm_of('llama', True, layers=3)

    class Late:
        def decode(self, request):
            ids, far = list(request.prompt), replace(request, lm=other).session()
            s = request.session() if len(ids) > 3 else None
            if s is not None:
                s.tree_logits(ids, list(range(20)), list(range(-1, 19)))
            for n in (1, 2, 3)[: 2 + (s is not None)]:
                far.logits([1] * n)
            s = request.session() if s is None else s  # opened while the first text holds its tree
            if len(ids) > 3:
                s.accept_path(range(20))
            else:
                s.logits(ids)
            longer = s.rows[0] + [9]
            assert torch.allclose(s.logits(longer), lm.session().logits(longer), atol=1e-10)
            yield Step([1])

    decode_batch(lm, [[4] * 60, [1, 2]], Late(), 2, 1)


@every
def test_hidden_states(family, native):
    "Chosen layers of the last tokens against transformers' output_hidden_states, the last one through the head."
    lm = lm_of(family, native, layers=4)
    ids = torch.randint(1, 64, (1, 40), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = lm.model(ids, output_hidden_states=True)
    s = lm.session()
    text = ids[0].tolist()
    draw = random.Random(0)
    for _ in range(12):
        n = draw.randrange(1, 41)
        last = draw.randrange(1, min(n, 6) + 1)
        layers = [draw.randrange(1, 5) for _ in range(draw.randrange(1, 4))]
        got = s.hidden_states(text[:n], layers, last)
        for i, layer in enumerate(layers):
            mine, theirs = (
                (lm.layers.head(got[None, :, i])[0], want.logits)
                if layer == 4
                else (got[:, i], want.hidden_states[layer])
            )
            assert close(mine, theirs[0, n - last : n], family)
        if n > 1:
            s.tree_logits(text[: n - 1], [5, 6], [-1, -1])


def test_what_is_rejected():
    lm = lm_of('llama', True)
    for parents in ([-1, 1], [0, 0], [-2, 0], [-1]):
        with pytest.raises(ValueError, match='parent'):
            lm.session().tree_logits([1], [1, 2], parents)
    s = lm.session()
    with pytest.raises(ValueError, match='no tree was read last'):
        s.accept_path([])
    s.tree_logits([1, 2], [3, 4, 5], [-1, 0, 0])
    for nodes in ([1], [0, 0], [0, 1, 2], [3], [-1]):
        with pytest.raises(ValueError, match='no path'):
            s.accept_path(nodes)
    assert s.accept_path([]).rows == [[1, 2]]
    assert len(TokenTree([1], [-1])) == 1
