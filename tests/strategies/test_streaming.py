"Streams yield the tokens of `decode` for every drafter, alone, awaited and in batches, and release their caches."

import asyncio
import gc
import threading

import pytest
import torch
from repo import ROOT
from transformers import TextIteratorStreamer

from decodelab import (
    AssistantDrafter,
    BeamSearch,
    ContrastiveSearch,
    DoLa,
    EarlyExitDrafter,
    Greedy,
    PromptLookupDrafter,
    Sample,
    Speculative,
    Stop,
    SuffixDrafter,
    SyntheticDrafter,
    Temperature,
    TokenIntersectionDrafter,
    TopP,
    UniversalDrafter,
    decode,
    decode_batch,
    generate,
    load,
    stream,
)
from decodelab.drafters import SuffixAutomatonDrafter, TokenRecyclingDrafter
from decodelab.strategies import astream, stream_batch

MODELS = ROOT.parent / 'shared' / 'data' / 'models'
PROMPTS = [
    'import os\n',
    'def add(a, b):\n    return',
    'x = "日本語 😀"\ny = "日本語',
    'class Reader:\n    def',
]
WARM = Sample([Temperature(0.8), TopP(0.95)])


@pytest.fixture(scope='module')
def family():
    return [load(name, device='cpu') for name in ('pico', 'pico-draft', 'pico-alt')]


def strategies(lm, draft, alt):
    for drafter in (
        AssistantDrafter(draft),
        PromptLookupDrafter(),
        EarlyExitDrafter(2),
        SuffixDrafter(),
        SuffixAutomatonDrafter(),
        TokenRecyclingDrafter((3, 1)),
        UniversalDrafter(alt),
    ):
        yield Speculative(drafter)
        yield Speculative(drafter, base=WARM)
    yield from (
        Speculative(SyntheticDrafter(0.7)),
        Speculative(TokenIntersectionDrafter(alt), base=WARM),
        Speculative(PromptLookupDrafter(), base=DoLa()),
        Greedy(),
        WARM,
        ContrastiveSearch(),
    )


def test_batches_of_every_drafter_are_the_same_without_streaming(family):
    for strategy in strategies(*family):
        options = dict(batch_size=3, max_new_tokens=10, seed=4, stop=Stop(strings=('\n', ') ')))
        texts = [''] * len(PROMPTS)
        for i, piece in stream_batch(family[0], PROMPTS, strategy, **options):
            assert piece
            texts[i] += piece
        assert texts == [t.text for t in decode_batch(family[0], PROMPTS, strategy, **options)], (
            strategy
        )


def test_awaited_texts_are_the_same_and_several_run_side_by_side(family):
    async def read(prompt, strategy):
        return ''.join([p async for p in astream(family[0], prompt, strategy, 10, seed=1)])

    async def all_of(made):
        return await asyncio.gather(*(read(p, s) for p, s in made))

    made = [(p, s) for p, s in zip(PROMPTS * 4, strategies(*family))]
    assert asyncio.run(all_of(made)) == [decode(family[0], p, s, 10, seed=1).text for p, s in made]


@pytest.mark.skipif(not MODELS.is_dir(), reason='no folder shared/data/models beside the checkout')
@pytest.mark.parametrize('name', ['stories260K', 'babyllama361'])
def test_tokenizers_of_others(name):
    lm = load(MODELS / name, device='cpu')
    for prompt in ('Once upon a time', 'The sun was'):
        for strategy in (Greedy(), Speculative(PromptLookupDrafter()), Sample([Temperature(1.5)])):
            for stop in (None, 'the', ['. ', 'and a']):
                assert (
                    ''.join(stream(lm, prompt, strategy, 40, stop=stop))
                    == decode(lm, prompt, strategy, 40, stop=stop).text
                )


def test_a_stream_that_is_dropped_lets_its_caches_go(family):
    lm = family[0]
    held = lambda: sum(type(o).__name__ == 'Session' for o in gc.get_objects())
    gc.collect()
    before = held()
    flow = stream(lm, PROMPTS[0], Greedy(), 20)
    next(flow)
    assert held() == before + 1
    flow.close()
    del flow
    gc.collect()
    assert held() == before
    assert not torch.is_inference_mode_enabled()


def test_a_search_is_rejected_wherever_it_could_be_streamed(family):
    for make in (
        lambda: stream(family[0], 'x', BeamSearch(2)),
        lambda: astream(family[0], 'x', BeamSearch(2)),
        lambda: stream_batch(family[0], ['x'], BeamSearch(2)),
    ):
        with pytest.raises(ValueError, match='pass agreed_only=True'):
            make()


def test_a_thread_generates_into_an_iterator_of_texts(family):
    """transformers' own recipe for streaming, through decodelab.generate.

    The pieces joined are the text, characters stay whole, and an error ends the waiting.
    """
    lm, draft = family[:2]
    inputs = lm.tokenizer('# ──── über ────\nx = 1\n# ────', return_tensors='pt')
    for options in (
        dict(),
        dict(prompt_lookup_num_tokens=4),
        dict(assistant_model=draft.model),
        dict(penalty_alpha=0.6, top_k=4),
    ):
        streamer = TextIteratorStreamer(lm.tokenizer, skip_prompt=True, timeout=60)
        out = []
        thread = threading.Thread(
            target=lambda: out.append(
                generate(lm.model, **inputs, max_new_tokens=24, streamer=streamer, **options)
            )
        )
        thread.start()
        got = [piece for piece in streamer if piece]
        thread.join()
        # of several tokens
        assert ''.join(got) == lm.tokenizer.decode(out[0][0, inputs['input_ids'].shape[1] :]), (
            options
        )
        assert len(got) > 1, options
        assert '\ufffd' not in ''.join(got), options
        assert any(ord(character) > 255 for character in ''.join(got)), options
    streamer = TextIteratorStreamer(lm.tokenizer, skip_prompt=True, timeout=60)

    def fails(ids, scores):
        raise RuntimeError('the device is gone')

    def work():
        with pytest.raises(RuntimeError, match='device is gone'):
            generate(
                lm.model, **inputs, max_new_tokens=24, streamer=streamer, logits_processor=[fails]
            )
        ended.append(True)

    ended, thread = [], threading.Thread(target=work)
    thread.start()
    assert ''.join(streamer) == ''  # it ends, rather than waiting for the timeout
    thread.join()
    assert ended
    with pytest.raises(ValueError, match='num_beams and streamer'):
        generate(lm.model, **inputs, max_new_tokens=4, num_beams=3, streamer=streamer)
