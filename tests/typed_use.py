"""A user's program for a type checker: `tools/signatures.py` checks it with the strictest settings, nothing runs it.

What a user gets from each door has a type that an editor can complete.
"""

from typing import Any, assert_type

from decodelab import (
    LM,
    AssistantDrafter,
    FixedLookahead,
    Greedy,
    GreenList,
    PromptLookupDrafter,
    Sample,
    Session,
    Speculative,
    Temperature,
    TopP,
    Trace,
    TypicalAcceptanceVerifier,
    certify,
    decode,
    decode_batch,
    detect,
    load,
)
from decodelab.detection import Detection
from decodelab.evaluate import Certificate
from decodelab.models import Batch

lm = load('pico')
draft = load('pico-draft')
assert_type(lm, LM)
assert_type(lm.encode('def f'), list[int])

speculative = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(4))
sampled = Sample([Temperature(0.7), TopP(0.9)])
trace = decode(lm, 'def f', speculative, max_new_tokens=8, seed=0)
assert_type(trace, Trace)
assert_type(trace.tokens, list[int])
assert_type(trace.text, str)
assert_type(trace.metrics(), dict[Any, Any])  # methods that later cells add are seen, too
assert_type(trace.to_json(), str)

batch = decode_batch(lm, ['def f', 'class A'], Speculative(PromptLookupDrafter(), sampled))
assert_type(batch, Batch)
assert_type(lm.session(), Session)

certificate = certify(Speculative(AssistantDrafter(draft), sampled, TypicalAcceptanceVerifier()))
assert_type(certificate, Certificate)
watermark = GreenList(42)
assert_type(detect(watermark, trace), Detection)
decode(lm, 'def f', Sample([watermark]), max_new_tokens=8)
plain = Greedy()
decode(lm, [1, 2, 3], plain)
