"A model and a watermarked sequence of it, for the tests of detections and of figures."

import pytest

from decodelab import GreenList, Sample, Temperature, decode, load


@pytest.fixture(scope='session')
def pico():
    return load('pico', device='cpu')


@pytest.fixture(scope='session')
def watermarked(pico):
    "A watermark, and the trace of a sequence with it."
    watermark = GreenList(7)
    prompt = 'def read_lines(path):\n'
    return watermark, decode(pico, prompt, Sample([Temperature(1.0), watermark]), 80, 0)
