"The result of a detection: no truth value, its level, its sequence and its text."

import inspect

import pytest

from decodelab import GreenList
from decodelab.detection.detect import combine, detect


def test_a_detection_is_no_truth_value(watermarked):
    watermark, trace = watermarked
    none = detect(GreenList(8), trace)
    assert none.p > 0.01
    assert not none.marked
    for evidence in (none, detect(watermark, trace), combine([none, none])):
        with pytest.raises(ValueError, match=r'neither true nor false .*ask for \.marked'):
            bool(evidence)


def test_the_verdict_is_at_the_level_of_the_call(watermarked):
    watermark, trace = watermarked
    result = detect(watermark, trace)
    assert result.marked
    assert result.level == 0.01
    assert ': p=' in repr(result)
    assert ', watermarked at level 0.01' in repr(result)
    strict = detect(watermark, trace, level=result.p / 2)
    assert not strict.marked
    assert 'not watermarked at level' in repr(strict)
    for level in (0, 1, 1.5, -0.1):
        with pytest.raises(ValueError, match='level is'):
            detect(watermark, trace, level=level)
    windows = detect(watermark, trace, windows=True, level=0.05)
    assert windows.windows.level == windows.level == 0.05
    assert windows.marked
    assert combine([result, result], level=1e-4).marked == (result.p <= 1e-4)


def test_a_trace_is_as_good_as_its_ids(watermarked, pico):
    watermark, trace = watermarked
    by_ids = detect(watermark, trace.prompt + trace.tokens, len(trace.prompt))
    by_trace = detect(watermark, trace)
    assert (by_trace.p, by_trace.z, by_trace.count) == (by_ids.p, by_ids.z, by_ids.count)
    assert ''.join(by_trace.pieces) == trace.prompt_text + trace.text
    assert 'read_lines' in by_trace._repr_html_()  # the text, not its ids
    with pytest.raises(ValueError, match='knows its prompt'):
        detect(watermark, trace, 3)


def test_the_result_of_a_string_states_that_it_was_tokenized_again(watermarked, pico):
    watermark, trace = watermarked
    result = detect(watermark, trace.text, trace.prompt_text, tokenizer=pico.tokenizer)
    assert result.retokenized
    assert 'tokenized again from a string' in repr(result)
    assert not detect(watermark, trace).retokenized
    assert 'tokenized again' in inspect.getdoc(detect)
