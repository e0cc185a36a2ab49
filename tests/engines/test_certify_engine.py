"Certificates of engines behind a local server with planted faults, each of which must be found."

import pytest
from transformers import BatchEncoding

from decodelab.core.driver import Rng, Strategy
from decodelab.core.trace import Step
from decodelab.engines import CompletionServer, OpenAIServer, certify_engine
from decodelab.evaluate.certify import random_lm
from decodelab.logits.warpers import Temperature
from decodelab.strategies.sampling import Greedy, Sample

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SIZES = dict(prompts=PROMPTS, samples=64, max_new_tokens=32, show=None, progress=False)


class Letters:
    "A tokenizer of one letter a token, as far as a server needs it."

    def __call__(self, text, **options):
        return BatchEncoding(dict(input_ids=[ord(c) - 97 for c in text]))

    def decode(self, ids, **options):
        return ''.join(chr(97 + i) for i in ids)


@pytest.fixture(scope='module')
def models():
    "A target and a draft over 24 letters."
    return [random_lm(seed=s, vocab_size=24, scale=0.5, tokenizer=Letters()) for s in (0, 1)]


class TooEasily(Strategy):
    "Speculation that accepts a drafted token with twice the probability that it should."

    def __init__(self, draft, base):
        self.draft = draft
        self.base = base

    def decode(self, request):
        p = self.base.bind(request)
        q = self.base.bind(
            type(request)(self.draft, request.prompt, request.max_new_tokens, Rng(0))
        )
        ids, rng = list(request.prompt), request.rng
        while True:
            row, guess = p.next_scores(ids), q.next_scores(ids)
            token = rng.categorical(guess)
            if rng.uniform() >= 2 * row[token] / guess[token]:
                token = rng.categorical((row - guess).clamp(min=0))
            ids.append(token)
            yield Step([token])


class WrongLogProbs(CompletionServer):
    "Reports the log-probabilities of the token before."

    def log_probs(self, prompt, tokens):
        return super().log_probs(prompt, [tokens[-1], *tokens[:-1]])


class Forgetful(CompletionServer):
    "Ignores the seed of a request."

    def answer(self, body):
        return super().answer(body | dict(seed=7))


def plain_base(engine):
    "Plain decoding under the settings."
    return engine.base


def temperature_twice(engine):
    "The temperature is applied by the scheduler and by the sampler."
    if not engine.temperature:
        return Greedy()
    return Sample([Temperature(engine.temperature), *engine.processors()])


def top_p_dropped(engine):
    "The nucleus is forgotten."
    return Sample([Temperature(engine.temperature)]) if engine.temperature else Greedy()


FAULTS = {
    'temperature twice': (temperature_twice, CompletionServer, 'score tests'),
    'top-p dropped': (top_p_dropped, CompletionServer, 'score tests'),
    'log-probabilities of another token': (plain_base, WrongLogProbs, 'log-probabilities'),
    'seed ignored': (plain_base, Forgetful, 'copies'),
}


def certificate_of(make, server, lm, **options):
    "The certificate of a server with these parts."
    with server(lm, make) as running:
        engine = OpenAIServer(running.url, 'm', temperature=0.8, top_p=0.9, batch=32)
        return certify_engine(engine, lm, **SIZES | options)


def failed_kinds(certificate):
    return [check.kind for check in certificate.checks if not check.passed]


@pytest.mark.parametrize('name', FAULTS)
def test_planted_faults(name, models):
    make, server, kind = FAULTS[name]
    certificate = certificate_of(make, server, models[0])
    assert certificate.verdict == 'lossy'
    assert kind in failed_kinds(certificate), certificate


def test_drafts_accepted_too_easily(models):
    target, draft = models
    make = lambda engine: TooEasily(draft, engine.base) if engine.temperature else engine.base
    certificate = certificate_of(make, CompletionServer, target, draft=draft)
    assert failed_kinds(certificate) == ['score tests']
    assert 'draft' in certificate.checks[0].message.partition('strongest')[2]


def test_a_right_server_passes(models):
    certificate = certificate_of(plain_base, CompletionServer, models[0], draft=models[1])
    assert certificate.lossless, certificate
    assert certificate.counts['tokens'] == 3 * 64 * 32


@pytest.mark.parametrize('wrong', [False, True])
def test_two_servers_without_weights(models, wrong):
    "As text, without a tokenizer on this side."
    target = models[0]
    make = top_p_dropped if wrong else plain_base
    prompts = [Letters().decode(ids) for ids in PROMPTS[:2]]
    with CompletionServer(target, make) as one, CompletionServer(target) as other:
        sides = [
            OpenAIServer(server.url, 'm', temperature=0.8, top_p=0.7, as_text=True, batch=64)
            for server in (one, other)
        ]
        sizes = SIZES | dict(prompts=prompts, samples=256, max_new_tokens=12)
        certificate = certify_engine(sides[0], None, sides[1], **sizes)
    assert certificate.lossless is not wrong, certificate
    assert 'letters' in certificate.checks[0].message
