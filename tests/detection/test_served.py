"A watermark from a server's configuration, detected in its HTTP responses: with drafts, without, under other keys."

import json
from urllib.request import Request, urlopen

import pytest

from decodelab import AssistantDrafter, FixedLookahead, Sample, Speculative, detect, load
from decodelab.detection import detect_candidates, served_ids, watermark_from_vllm
from decodelab.engines import CompletionServer
from decodelab.watermark import KeySequence, PermuteAndFlip, align, dual_key_speculation

CONFIG = dict(algorithm='dual_key_gumbel', key=42)
PROMPT = 'def read_lines(path):\n    """Return'


@pytest.fixture(scope='module')
def models():
    return load('pico', device='cpu'), load('pico-draft', device='cpu')


def responses(lm, strategy, **settings):
    "The JSON of a completion of a server that decodes by this strategy."
    body = dict(prompt=PROMPT, max_tokens=48, seed=1, return_token_ids=True) | settings
    with CompletionServer(lm, lambda engine: strategy) as server:
        request = Request(f'{server.url}/v1/completions', json.dumps(body).encode())
        with urlopen(request) as answer:
            return json.load(answer)


def test_dual_keys_are_detected_with_drafts_and_without(models):
    lm, draft = models
    watermark = watermark_from_vllm(json.dumps(CONFIG), harmonic=True)
    drafted = dual_key_speculation(
        AssistantDrafter(draft),
        watermark,
        lookahead=FixedLookahead(3),
        target_watermark=watermark.b,
    )
    for strategy in (Sample([watermark]), drafted):
        [ids] = served_ids(responses(lm, strategy))
        assert detect(watermark, ids).p < 1e-6
        other = watermark_from_vllm(CONFIG | dict(key=43), harmonic=True)
        report = detect_candidates({'old': other, 'new': watermark}, ids)
        assert report.watermarked.tolist() == [False, True]


def test_speculation_keeps_the_other_families(models):
    lm, draft = models
    flip, sequence = PermuteAndFlip(7), KeySequence(7, 48)
    for watermark in (flip, sequence):
        strategy = Speculative(AssistantDrafter(draft), Sample([watermark]))
        [ids] = served_ids(responses(lm, strategy, max_tokens=32))
        if watermark is flip:
            assert detect(watermark_from_vllm(dict(key=7)), ids).p < 1e-6  # the engine's detector
        else:
            assert align(watermark, [9, 9, *ids[:12], *ids[14:]]).p == 0.01


def test_a_response_without_ids_is_an_error(models):
    with pytest.raises(ValueError, match='return_token_ids'):
        served_ids(responses(models[0], Sample(), max_tokens=2, return_token_ids=False))
