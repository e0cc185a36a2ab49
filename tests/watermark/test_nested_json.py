"Deeply nested JSON is rejected by traces and watermarks."

import pytest

from decodelab import GreenList, Trace
from decodelab.watermark.base import Watermark
from tests.refusals import error_message


@pytest.mark.parametrize('depth', [500, 900, 990, 1100, 5000, 100_000])
@pytest.mark.parametrize('form', ['{}', '{{"decodelab_trace": {}}}', '{{"scheme": {}}}'])
def test_json_that_is_nested_deeply_is_rejected(form, depth):
    text = form.format('[' * depth + ']' * depth)
    for read in (Trace.from_json, Watermark.from_json, GreenList.from_json):
        error_message(lambda read=read: read(text), ValueError)
