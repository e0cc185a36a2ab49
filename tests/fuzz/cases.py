"One random combination, how it is run, and how a failing one is made small."

import contextlib
import random
import re
import signal
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import decodelab
from decodelab import Speculative, Stop
from decodelab.core.driver import Request, Rng
from tests.fuzz.models import build, letters
from tests.fuzz.parts import Maker, UndefinedError, namespace

PACKAGE = str(Path(decodelab.__file__).parent)
SECONDS = 60  # of processor time, after which a case hangs


@dataclass(frozen=True)
class Case:
    "A combination, every part an expression."

    architecture: str
    drafter: str
    verifier: str
    lookahead: str
    processors: tuple[str, ...]
    prompts: tuple[tuple[int, ...], ...]
    n: int
    stop: str = 'Stop(eos=())'
    seed: int = 0
    around: str = ''  # a strategy around `base`, the `Speculative`, or `plain`, its base

    def strategy(self, base, world):
        "The `Speculative` of this case on a base; raises what its parts raise."
        names = namespace(world)
        parts = [eval(e, names) for e in (self.drafter, self.verifier, self.lookahead)]
        return Speculative(parts[0], base, parts[1], parts[2])

    def bound_processors(self, world):
        return [eval(e, namespace(world)) for e in self.processors]

    @property
    def stops(self) -> Stop:
        return eval(self.stop, namespace({}))

    def request(self, target, prompt, rng=None) -> Request:
        return Request(target, list(prompt), self.n, rng or Rng(0), self.stops)


class FailedError(Exception):
    "What a case did wrong, in words."


class RejectedError(Exception):
    "A combination that decodelab refuses in a sentence."


# What a combination may raise although plain decoding of the same prompt succeeds: parts that do not fit
# together, or a limit of a model. Another sentence is a failure.
MAY_BE_RAISED = (
    'a processor learns from each token, also from those that are taken back',
    'walks along a chain and the draft is a tree',
    'the output of a sampling base is not known beforehand',
    'draft heads put their own states through it, so use another drafter',
    'cannot be read in parts',
    'this session records the hidden states of .* use heads or an early exit, not both',
    'this session records the states after layers .* use one kind of heads',
    'cannot be left early, its past cannot be cut at two positions: use another drafter',
    'cannot be drafted for from a part of its past',
    'reads a clock, and with .* the tokens of a seed would depend on it',
    'remembers earlier sequences, and with .* the tokens of a seed would depend on them',
    'weighs probabilities and .* has none',
)


def may_be_raised(sentence: str) -> bool:
    return any(re.search(pattern, sentence) for pattern in MAY_BE_RAISED)


@contextlib.contextmanager
def time_limit(seconds: int):
    "Raise `FailedError` in the main thread after some seconds of processor time, however busy the machine is."

    def stop(*_):
        raise FailedError(f'hangs: no answer after {seconds} s')

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def judged(plain_succeeded: bool = False):
    """A sentence raised by decodelab is a refusal; any other exception is a failure.

    Once plain decoding has succeeded, only those of `MAY_BE_RAISED` are refusals.
    """
    try:
        yield
    except (FailedError, RejectedError):
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        raised = last.filename.startswith(PACKAGE) and (last.line or '').startswith('raise ')
        expected = may_be_raised(str(error)) or not plain_succeeded
        if raised and expected and len(str(error).split()) >= 5:
            raise RejectedError(str(error)) from error
        raise FailedError(f'{type(error).__name__}: {error} ({origin(error)})') from error
    except UndefinedError as error:
        if plain_succeeded:
            raise FailedError(f'{error} ({origin(error)})') from error
        raise RejectedError('another processor forces a token that this one forbids') from error
    except Exception as error:
        raise FailedError(f'{type(error).__name__}: {error} ({origin(error)})') from error


def origin(error) -> str:
    "The last line of the package on the way to an error."
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)
    ]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f'{Path(last.filename).name}:{last.lineno}'


def world_of(architecture: str, vocab_size: int, make=build) -> dict:
    """The models and heads that expressions name; None for an architecture that cannot be tiny.

    `make` is `build`, or makes models that remember what they computed.
    """
    if build(architecture, 0, vocab_size) is None:
        return None
    return Lazy(make(architecture, 0, vocab_size), make('llama', 1, vocab_size), vocab_size)


class Lazy(dict):
    "Heads are made when an expression names them."

    def __init__(self, target, draft, vocab_size: int):
        super().__init__(target=target, draft=draft)
        self.vocab_size = vocab_size

    def __missing__(self, name):
        from decodelab.drafters import (
            DFlashHeads,
            Eagle3Heads,
            EagleHeads,
            HydraHeads,
            MedusaHeads,
        )

        target = self['target']
        if name == 'medusa':
            self[name] = MedusaHeads.of(target, 4).randomized(target)
        elif name == 'eagle':
            self[name] = EagleHeads.of(target, heads=2, steps=2).randomized(target)
        elif name == 'hydra':
            self[name] = HydraHeads.of(target, 3, prefix=True).randomized(target)
        elif name == 'dflash':
            self[name] = DFlashHeads.of(target, block=4).randomized(target)
        elif name == 'eagle3':
            width = target.text_config.hidden_size
            self[name] = Eagle3Heads(width, target.vocab_size).randomized(target)
        elif name == 'other':
            other = build('llama', 2, self.vocab_size)
            kind = type(self['target'])  # it remembers as the target does
            self[name] = kind(other.model, letters(self.vocab_size, reverse=True), 'other')
        else:
            raise KeyError(name)
        return self[name]

    def __or__(self, other):
        return dict(self) | other

    def named(self, case: Case) -> dict:
        "All that a case names."
        text = ' '.join((case.drafter, case.verifier, case.lookahead, *case.processors))
        for name in ('medusa', 'eagle', 'hydra', 'eagle3', 'dflash', 'other'):
            if name in text:
                self[name]
        return dict(self)


@dataclass(frozen=True)
class Kind:
    "The sizes of one kind of case."

    vocab_size: int
    lengths: tuple[int, ...]  # of a prompt, before it is repeated
    new_tokens: tuple[int, ...]
    lookaheads: tuple[int, ...] = ()  # of a fixed rule; (): any rule
    architectures: tuple[str, ...] = ()  # (): all
    enumerated: bool = False
    around: bool = False  # a strategy around the speculative one?


def random_case(draw: random.Random, architectures, kind: Kind) -> Case:
    "A case from a seeded generator."
    vocab_size, enumerated = kind.vocab_size, kind.enumerated
    maker = Maker(draw, vocab_size, enumerated, kind.lookaheads, tries=not kind.around)
    lengths = kind.lengths
    n_prompts = 1 if enumerated or draw.random() < 0.7 else draw.randint(2, 4)
    prompts = []
    for _ in range(n_prompts):
        prompt = [draw.randrange(vocab_size) for _ in range(draw.choice(lengths))]
        if draw.random() < 0.5:
            prompt = prompt * 2  # something to look up
        prompts.append(tuple(prompt))
    n_processors = draw.choice((0, 0, 1, 1, 2))
    return Case(
        architecture=draw.choice(list(kind.architectures or architectures)),
        drafter=maker.drafter(),
        verifier=maker.verifier(),
        lookahead=maker.lookahead(),
        processors=tuple(maker.processor() for _ in range(n_processors)),
        prompts=tuple(prompts),
        n=draw.choice(kind.new_tokens),
        stop=maker.stop(),
        seed=draw.randrange(100),
        around=maker.around() if kind.around else '',
    )


SIMPLEST = dict(
    stop='Stop(eos=())', verifier='None', lookahead='FixedLookahead(2)', architecture='llama'
)


def smaller(case: Case):
    "Simpler cases, the simplest changes first."
    if len(case.prompts) > 1:
        yield from (replace(case, prompts=(prompt,)) for prompt in case.prompts)
    for i in range(len(case.processors)):
        yield replace(case, processors=case.processors[:i] + case.processors[i + 1 :])
    for name, value in SIMPLEST.items():
        if getattr(case, name) != value:
            yield replace(case, **{name: value})
    yield from (replace(case, drafter=inner) for inner in inner_expressions(case.drafter))
    yield from (replace(case, n=n) for n in range(1, case.n))
    if len(case.prompts[0]) > 1:
        yield replace(case, prompts=(case.prompts[0][: len(case.prompts[0]) // 2],))


def inner_expressions(expression: str):
    "The drafters inside an expression."
    import ast

    tree = ast.parse(expression, mode='eval').body
    for value in [*tree.args, *(k.value for k in tree.keywords)]:
        if isinstance(value, ast.Call) and getattr(value.func, 'id', '').endswith('Drafter'):
            yield ast.unparse(value)


def shrink(case: Case, fails) -> Case:
    "The smallest case found that still fails."
    budget = 60
    progress = True
    while progress and budget:
        progress = False
        for other in smaller(case):
            budget -= 1
            if fails(other):
                case, progress = other, True
                break
            if not budget:
                break
    return case
