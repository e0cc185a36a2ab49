"Prompts of a real benchmark, where a folder `shared` with them lies beside the checkout."

import json

import pytest
from repo import ROOT

from decodelab.cli.bench_report import read_prompts

QUESTIONS = ROOT.parent / 'shared' / 'data' / 'spec_bench' / 'question.jsonl'


@pytest.mark.skipif(not QUESTIONS.exists(), reason='no folder shared/data beside the checkout')
def test_prompts_of_real_benchmarks_are_read():
    questions = read_prompts(QUESTIONS)
    first = json.loads(QUESTIONS.read_text().splitlines()[0])
    assert len(questions) == 480
    assert questions[0] == first['turns'][0]
