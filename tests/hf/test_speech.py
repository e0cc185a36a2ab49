"Speech through every function: the tokens of transformers' own `generate` for the same sound."

import copy

import numpy as np
import pytest
import torch
from repo import ROOT

from decodelab import (
    LM,
    AssistantDrafter,
    BeamSearch,
    EarlyExitDrafter,
    FixedLookahead,
    Greedy,
    PromptLookupDrafter,
    Sample,
    Speculative,
    TokenVerifier,
    generate,
    load,
)
from decodelab.drafters.shared_encoder import SharedEncoder, same_encoder
from decodelab.models.audio import audio_features, read_wav, resample
from decodelab.strategies.transcribe import suppression_processors, transcribe
from decodelab.zoo.signals import sample
from decodelab.zoo.speech_model import word_error_rate

DATA = ROOT.parent / 'shared' / 'data'
real = pytest.mark.skipif(
    not (DATA / 'models' / 'whisper-fsdd-target').is_dir(),
    reason='no folder shared/data/models beside the checkout',
)
DIGITS = 'zero one two three four five six seven eight nine'.split()


@pytest.fixture(scope='module')
def pico():
    return tuple(
        load(name, device='cpu', dtype=torch.float64)
        for name in ('pico-whisper', 'pico-whisper-draft')
    )


@pytest.fixture(scope='module')
def sounds(pico):
    return [audio_features(pico[0], sample(i, 5, test=True).wave) for i in range(8)]


def transcript(model, sound, **how):
    ids = model.generate(**sound, do_sample=False, **how)[0].tolist()
    return [i for i in ids if i > 2]


def test_searches_are_those_of_transformers(pico, sounds):
    lm, draft = pico
    shared = SharedEncoder(draft)
    for sound in sounds:
        greedy, beams = transcript(lm.model, sound), transcript(lm.model, sound, num_beams=3)
        for strategy in (
            Greedy(),
            Speculative(shared),
            Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3)),
            Speculative(PromptLookupDrafter()),
            Speculative(EarlyExitDrafter(1), lookahead=FixedLookahead(3)),
        ):
            assert [i for i in transcribe(lm, sound, strategy).tokens if i > 2] == greedy, strategy
        assert [i for i in transcribe(lm, sound, BeamSearch(3)).tokens if i > 2] == beams
        assert (
            [i for i in generate(lm.model, **sound)[0].tolist() if i > 2]
            == [
                i
                for i in generate(lm.model, **sound, assistant_model=draft.model)[0].tolist()
                if i > 2
            ]
            == greedy
        )
    together = generate(lm.model, input_features=torch.cat([s['input_features'] for s in sounds]))
    for row, sound in zip(together, sounds, strict=True):
        assert row[row > 2].tolist() == transcript(lm.model, sound)


def test_forbidden_tokens_stay_away_from_drafts_and_targets(pico, sounds):
    model = copy.deepcopy(pico[0].model)
    model.generation_config.suppress_tokens = [9, 10, 11, 12]
    model.generation_config.begin_suppress_tokens = [20, 21, 2]
    lm = LM(model, pico[0].tokenizer, 'pico-whisper')
    before = model.generation_config.to_dict()
    for sound in sounds:
        plain = transcribe(lm, sound)
        assert not {9, 10, 11, 12} & set(plain.tokens)
        assert plain.tokens[0] not in (20, 21, 2)
        assert [i for i in plain.tokens if i > 2] == transcript(model, sound)
        assert (
            transcribe(
                lm, sound, Speculative(SharedEncoder(pico[1]), Greedy(suppression_processors(lm)))
            ).tokens
            == plain.tokens
        )
    with pytest.raises(ValueError, match='suppression_processors'):
        transcribe(lm, sounds[0], Speculative(SharedEncoder(pico[1])))
    assert model.generation_config.to_dict() == before


def test_a_shared_encoder_samples_as_its_own_does(pico, sounds):
    lm, draft = pico
    for i, sound in enumerate(sounds):
        one, two = (
            transcribe(lm, sound, Speculative(kind(draft), Sample(), TokenVerifier()), seed=i)
            for kind in (AssistantDrafter, SharedEncoder)
        )
        assert one.tokens == two.tokens
        assert [s.draft_tokens for s in one.steps] == [s.draft_tokens for s in two.steps]


def spoken(count, seed=0):
    "Recordings of three digits each, with what is said."
    rng = np.random.default_rng(seed)
    files = sorted((DATA / 'audio' / 'fsdd').glob('*.wav'))
    for _ in range(count):
        some = [files[i] for i in rng.integers(0, len(files), 3)]
        yield (
            ' '.join(DIGITS[int(f.name[0])] for f in some),
            np.concatenate([resample(*read_wav(f), 16_000) for f in some]),
        )


@real
def test_spoken_digits():
    lm, draft = (
        load(DATA / 'models' / f'whisper-fsdd-{n}', device='cpu', dtype=torch.float64)
        for n in ('target', 'draft')
    )
    assert not same_encoder(lm, draft)
    truths = []
    texts = []
    passes = 0
    tokens = 0
    for truth, samples in spoken(16):
        sound = audio_features(lm, samples)
        plain = transcribe(lm, sound)
        assert [i for i in plain.tokens if i != 2] == lm.model.generate(**sound, do_sample=False)[
            0
        ].tolist()
        fast = transcribe(
            lm, sound, Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(5))
        )
        assert fast.tokens == plain.tokens
        truths.append(truth)
        texts.append(lm.tokenizer.decode(plain.tokens, skip_special_tokens=True))
        passes = passes + fast.metrics()['target_passes']
        tokens = tokens + len(fast.tokens)
    assert word_error_rate(truths, texts) < 0.1
    assert tokens / passes > 3
    with pytest.raises(ValueError, match='do not have the same encoder'):
        transcribe(lm, sound, Speculative(SharedEncoder(draft)))


@real
def test_a_long_recording_is_rejected_and_its_pieces_are_transcribed(pico):
    path = next(
        p
        for folder in ('jfk', 'librivox')
        for p in sorted((DATA / 'audio' / folder).glob('*.wav')) or []
    )
    samples, rate = read_wav(path)
    assert np.abs(samples).max() <= 1
    assert len(samples) > 4 * rate
    with pytest.raises(ValueError, match='cut it into pieces'):
        audio_features(pico[0], samples, rate)
    assert audio_features(pico[0], samples[: 3 * rate], rate)['input_features'].shape == (
        1,
        40,
        200,
    )
