"""A text may fill the context: its last new token is generated and not read, as in transformers.

The model has learned positions, so a pass over one position too many is an error, and a copy of it with more positions
is the reference.
"""

import copy
import warnings

import pytest
import torch

from decodelab import LM, Greedy, Sample, decode, decode_batch, generate
from decodelab.drafters import (
    AssistantDrafter,
    DynamicTreeDrafter,
    EarlyExitDrafter,
    LookaheadDecodingDrafter,
    PromptLookupDrafter,
    SuffixAutomatonDrafter,
    TokenRecyclingDrafter,
    TreeDrafter,
)
from decodelab.evaluate.certify import random_lm
from decodelab.speculative import FixedLookahead, Speculative
from decodelab.strategies import (
    BeamSearch,
    BestOfN,
    ContrastiveDecoding,
    ContrastiveSearch,
    DoLa,
)
from tests.hf.test_generate import seq2seq

CONTEXT = 16
PROMPT = [5, 6, 7, 5, 6, 7]
ROOM = CONTEXT - len(PROMPT) + 1  # the last one is not read
warnings.simplefilter('ignore')


def cut(lm):
    "A copy that has the first `CONTEXT` positions."
    model = copy.deepcopy(lm.model)
    table = model.transformer.wpe
    table.weight = torch.nn.Parameter(table.weight[:CONTEXT].clone())
    table.num_embeddings = CONTEXT
    model.config.max_position_embeddings = CONTEXT
    return LM(model, None, 'cut')


@pytest.fixture(scope='module')
def lms():
    "`(cut, whole, draft)`."
    whole, draft = (random_lm('gpt2', seed, layers=2, scale=0.3) for seed in (1, 2))
    return cut(whole), whole, cut(draft)


STRATEGIES = {
    'greedy': lambda d: Greedy(),
    'sampling': lambda d: Sample(),
    'beams': lambda d: BeamSearch(3),
    'contrastive decoding': lambda d: ContrastiveDecoding(d),
    'DoLa': lambda d: DoLa('high'),
    'best of 3': lambda d: BestOfN(n=3),
    'assistant': lambda d: Speculative(AssistantDrafter(d), Greedy(), lookahead=FixedLookahead(4)),
    'sampled assistant': lambda d: Speculative(AssistantDrafter(d), Sample()),
    'early exit': lambda d: Speculative(EarlyExitDrafter(1)),
    'prompt lookup': lambda d: Speculative(PromptLookupDrafter()),
    'suffix automaton': lambda d: Speculative(SuffixAutomatonDrafter()),
    'tree': lambda d: Speculative(TreeDrafter(d, (3, 2, 1))),
    'growing tree': lambda d: Speculative(DynamicTreeDrafter(d)),
    'lookahead decoding': lambda d: Speculative(LookaheadDecodingDrafter()),
    'recycling': lambda d: Speculative(TokenRecyclingDrafter()),
}


@pytest.mark.parametrize('name', STRATEGIES)
def test_a_text_that_fills_the_context(lms, name):
    short, whole, draft = lms
    strategy = STRATEGIES[name](draft)
    ours = decode(short, PROMPT, strategy, ROOM, seed=0).tokens
    assert len(ours) == ROOM
    assert ours == decode(whole, PROMPT, strategy, ROOM, seed=0).tokens
    rows = decode_batch(short, [PROMPT, PROMPT[1:]], strategy, max_new_tokens=ROOM, seed=0)
    assert rows[0].tokens == ours
    with pytest.raises(ValueError, match='do not fit in the context of 16'):
        decode(short, PROMPT, strategy, ROOM + 1)


def test_contrastive_search_reads_its_last_token(lms):
    short, whole, _ = lms
    ours = decode(short, PROMPT, ContrastiveSearch(), ROOM - 1).tokens
    assert ours == decode(whole, PROMPT, ContrastiveSearch(), ROOM - 1).tokens
    with pytest.raises(ValueError, match='reads its last token, and 17 do not fit'):
        decode(short, PROMPT, ContrastiveSearch(), ROOM)


SETTINGS = [
    {},
    dict(num_beams=3),
    dict(use_cache=False),
    dict(prompt_lookup_num_tokens=4),
    dict(cache_implementation='static'),
    dict(return_dict_in_generate=True, output_scores=True),
]


@pytest.mark.parametrize('settings', SETTINGS, ids=str)
@pytest.mark.parametrize('rows', [1, 2])
def test_it_is_the_length_of_transformers(lms, settings, rows):
    model = lms[0].model
    call = dict(input_ids=torch.tensor([PROMPT] * rows), max_new_tokens=ROOM, **settings)
    same = []
    for decode_ids in (generate, type(model).generate):
        if 'prompt_lookup_num_tokens' in settings and decode_ids is not generate:
            call.pop('prompt_lookup_num_tokens')  # transformers drafts for one row only
        result = decode_ids(model, **call, do_sample=False, pad_token_id=0)
        same.append(result if torch.is_tensor(result) else result.sequences)
    assert torch.equal(*same)
    assert same[0].shape[1] == CONTEXT + 1
    with pytest.raises(ValueError, match='do not fit in the context'):
        generate(model, **call | dict(max_new_tokens=ROOM + 1))


def test_a_decoder_and_its_encoder():
    "The begin of the decoder's text takes one position, and the source has all."
    model = seq2seq('bart')
    n = model.config.max_position_embeddings
    call = dict(input_ids=torch.full((1, n), 5), eos_token_id=-1, do_sample=False)
    ours = generate(model, **call, max_new_tokens=n)
    assert torch.equal(ours, model.generate(**call, max_new_tokens=n))
    for more in (
        dict(max_new_tokens=n + 1),
        dict(max_new_tokens=2, input_ids=torch.full((1, n + 1), 5)),
    ):
        with pytest.raises(ValueError, match='do not fit in the context'):
            generate(model, **call | more)
