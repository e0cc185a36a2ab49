"""Parts made from their signatures, as expressions that print, evaluate and shrink.

Every class of the package that is a `Drafter`, a `Verifier`, a `LookaheadRule` or a `LogitsProcessor` is made
from the parameters of its `__init__`, by name. A new part is fuzzed without being named here; a parameter that
no provider knows is an error that says so.
"""

import functools
import importlib
import inspect
import pkgutil
import random
from dataclasses import dataclass

import decodelab
from decodelab import strategies
from decodelab.core.driver import Stop
from decodelab.drafters.heads import Heads
from decodelab.logits import PrefixConstrained
from decodelab.logits.warpers import LogitsProcessor
from decodelab.speculative.protocol import Drafter, LookaheadRule, Verifier

MODELS = (
    'draft',
    'target',
    'eagle',
    'medusa',
    'hydra',
    'eagle3',
    'dflash',
)  # what drafts where a part takes an `lm`

# Not fuzzed, with the reason
LEFT_OUT = dict(
    ModelDrafter='a base class',
    ReducedCacheDrafter='a base class',
    CombinedDrafter='a base class',
    TableDrafter='for tables of fractions',
    WatermarkedDrafter='no output is a sample of its base under one key',
    WatermarkedVerifier='no output is a sample of its base under one key',
    DrafterWithBase='made by WatermarkedDrafter',
    SharedEncoder='for encoder–decoders',
    SinglePositionDrafter='for one architecture with an assistant of its own, in tests/drafters/test_mtp.py',
    MtpDrafter='for checkpoints with MTP layers, in tests/drafters/test_mtp.py',
    SyntheticDrafter='its drafts are made from the target, in its notebook',
    OracleLookahead='replays a table of a recorded run',
    Length='a length inside the cost model',
    RecordFeatures='records another rule',
    LenientVerifier='lossy by design',
    ReuseVerifier='lossy by design',
    TypicalAcceptanceVerifier='lossy by design',
    ClassifierLookahead='needs to be fitted, in tests/tuning/test_lookahead_rules.py',
    HFProcessor='a base class',
    HFIdsProcessor='a base class',
    Warper='a base class',
    PerRow='wraps another',
    PrefixConstrained='takes a function, in its notebook',
    EncoderRepetitionPenalty='for encoder–decoders',
    EncoderNoRepeatNGram='for encoder–decoders',
    ClassifierFreeGuidance='has a second sequence, in tests/drafters/test_model_families.py',
    RemoveInvalidValues='for models with NaN',
    Grammar='a base class',
    CompiledGrammar='a base class',
    JsonSchema='takes a schema, in tests/logits/test_grammars.py',
    Regex='takes a pattern, in tests/logits/test_grammars.py',
    IdGrammar='for tables of fractions',
    RolloutDrafter='takes rollouts, in tests/drafters/test_rollouts.py',
    GrammarDrafter='takes a grammar, in tests/logits/test_grammars.py',
    JsonGrammar='needs a vocabulary with JSON in it, in tests/logits/test_json_grammar.py',
)
PARTS = (Drafter, Verifier, LookaheadRule, LogitsProcessor)
PACKAGES = [['decodelab', part] for part in ('drafters', 'speculative', 'tuning', 'logits')]


@functools.cache
def modules() -> tuple:
    "The modules that define what is fuzzed."
    names = []
    for package in ('drafters', 'speculative', 'tuning', 'logits', 'watermark'):
        path = importlib.import_module(f'decodelab.{package}').__path__
        names += [f'decodelab.{package}.{m.name}' for m in pkgutil.iter_modules(path)]
    return tuple(map(importlib.import_module, names))


def subclasses(cls):
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


@functools.cache  # the package's own, which are all there once its modules are imported
def classes(kind) -> dict:
    "Name → class, of the package's own classes of this kind that are fuzzed."
    modules()
    return {
        c.__name__: c
        for c in sorted(set(subclasses(kind)), key=lambda c: c.__name__)
        if c.__module__.split('.')[:2] in PACKAGES and c.__name__ not in LEFT_OUT
    }


@functools.cache
def part_names() -> dict:
    "The names of an expression that are the same for every case."
    names = {n: c for kind in PARTS for n, c in classes(kind).items()}
    for m in modules():
        names |= {n: v for n, v in vars(m).items() if inspect.isclass(v) and issubclass(v, Heads)}
    from decodelab.speculative.cost_aware import RoundCosts

    return (
        names
        | dict(Greedy=decodelab.Greedy, Sample=decodelab.Sample, RoundCosts=RoundCosts)
        | dict(Stop=Stop, Every=Every, Trie=Trie, text_end=text_end)
        | {name: getattr(strategies, name) for name in AROUND}
    )


def namespace(world) -> dict:
    "The names that an expression may use."
    return part_names() | world


# Ends of a sequence, and a processor that is undefined behind them


@dataclass(frozen=True)
class Every:
    "Ends a sequence with the first id that `n` divides."

    n: int

    def __call__(self, tokens) -> bool:
        return tokens[-1] % self.n == 0


def has_ended(stop: Stop, lm, tokens: list[int]) -> bool:
    "Does the last of these new tokens end the sequence? Without the code that decodes."
    if tokens[-1] in (lm.eos if stop.eos is None else stop.eos):
        return True
    if any(s in lm.decode(tokens) for s in stop.strings):
        return True
    return stop.when is not None and stop.when(tokens)


class UndefinedError(KeyError):
    "Raised by a processor behind a token that it does not allow."


@dataclass(frozen=True, repr=False)
class Trie(LogitsProcessor):
    "Allows some tokens after each prefix of new tokens; behind others, and behind an end, it raises `UndefinedError`."

    seed: int

    def bind(self, request):
        start, stop = len(request.prompt), request.stop
        lm = request.lm

        def allowed(_, ids):
            new = ids.tolist()[start:]
            for n in range(len(new)):
                if new[n] not in self.tokens_after(new[:n], lm.vocab_size):
                    raise UndefinedError(f'a token that is not allowed in {new}')
                if has_ended(stop, lm, new[: n + 1]):
                    raise UndefinedError(f'an end inside {new}')
            return self.tokens_after(new, lm.vocab_size)

        return PrefixConstrained(allowed).bind(request)

    def tokens_after(self, new: list[int], vocab_size: int) -> list[int]:
        draw = random.Random(repr((self.seed, new)))
        return sorted(draw.sample(range(vocab_size), draw.randint(1, min(6, vocab_size))))


# Strategies around another one, and their parts
AROUND = (
    'BudgetForcing',
    'TokenTriggers',
    'InsertAfter',
    'Backtracking',
    'RepeatedNGram',
    'Loop',
    'Phrases',
    'PreparedPrompt',
    'Prepend',
    'Reread',
    'BestOfN',
    'SelfConsistency',
    'SequenceProbability',
    'Decided',
    'ConfidentMajority',
    'DeepConf',
    'LowestGroup',
    'MeanConfidence',
)


def text_end(text: str) -> str:
    "The last letter, as the answer of a vote."
    return text[-1:]


def wraps_another(verifier) -> bool:
    return 'verifier' in inspect.signature(verifier).parameters


def verifier_call(cls, inner) -> str:
    "An expression for a verifier; `inner()` is one for the verifier that it wraps, if it wraps one."
    return f'{cls.__name__}({inner() if wraps_another(cls) else ""})'


class Maker:
    "Makes expressions from signatures, with a `random.Random`."

    def __init__(self, draw, vocab_size, enumerated=False, lookaheads=(), tries=True):
        self.draw = draw
        self.vocab_size = vocab_size
        self.tries = tries  # not where ids are inserted, of which a trie knows nothing
        self.enumerated = enumerated  # small parts, for an enumeration
        self.lookaheads = lookaheads or ((1, 2) if enumerated else ())
        self.deep = enumerated and max(self.lookaheads) > 2
        self.drafters = classes(Drafter)
        self.verifiers = {n: c for n, c in classes(Verifier).items() if c.lossless}
        self.rules = classes(LookaheadRule)
        self.processors = classes(LogitsProcessor)

    def drafter(self, depth: int = 0) -> str:
        names = sorted(self.drafters)
        while True:
            name = self.draw.choice(names)
            inner = {'drafter', 'drafters'} & set(inspect.signature(self.drafters[name]).parameters)
            if not inner or depth < 2:
                return self.make(self.drafters[name], depth)

    def verifier(self) -> str:
        "None, or for a law any verifier; under a greedy base those of probabilities are rarely tried."
        names = (
            sorted(self.verifiers)
            if self.enumerated or self.draw.random() < 0.05
            else ['ExactMatchVerifier']
        )
        name = self.draw.choice(['None', *names])
        if name == 'None':
            return name
        others = [n for n in names if not wraps_another(self.verifiers[n])]
        return verifier_call(self.verifiers[name], lambda: f'{self.draw.choice(others)}()')

    def lookahead(self) -> str:
        if self.lookaheads:
            return f'FixedLookahead({self.draw.choice(self.lookaheads)})'
        return self.make(self.rules[self.draw.choice(sorted(self.rules))], 0)

    def processor(self) -> str:
        if self.tries and self.draw.random() < 0.15:
            self.tries = (
                False  # two of them may leave no token, which transformers' processor hides
            )
            return f'Trie({self.draw.randrange(100)})'
        return self.make(self.processors[self.draw.choice(sorted(self.processors))], 0)

    def around(self) -> str:
        "A strategy around `base`, a speculative one, or around `plain`, its base."
        draw, last = self.draw, self.vocab_size - 1
        ids = lambda n: [draw.randint(0, last) for _ in range(n)]
        n, at_once = draw.randint(1, 4), draw.choice([None, 1, 2])
        least, most = sorted(draw.sample(range(7), 2))
        inserts = [f'InsertAfter({ids(1)}, {ids(draw.randint(1, 3))})' for _ in range(12)]
        forms = [
            f'BudgetForcing({last}, {least}, {most}, {draw.choice([(), tuple(ids(2))])}, base=plain)',
            f'BudgetForcing({last}, 0, {most}, hidden=True, base=plain)',
            f'TokenTriggers([{", ".join(inserts)}], plain, {draw.randint(0, 3)})',
            f'Backtracking(RepeatedNGram({draw.randint(1, 3)}), plain, {draw.choice([1, 2, 64])})',
            f'Backtracking(Loop(2, {draw.randint(1, 4)}), plain)',
            f'Backtracking(Phrases([{ids(1)}, {ids(2)}, {ids(1)}]), plain)',
            f'PreparedPrompt(Prepend({ids(2)}), base)',
            f'PreparedPrompt(Reread({ids(1)}, 2), base)',
            f'BestOfN(base, {n}, at_once={at_once})',
            f'SelfConsistency(text_end, base, {n}, at_once={at_once})',
            f'SelfConsistency(text_end, base, {n}, SequenceProbability(), at_once={at_once})',
            f'SelfConsistency(text_end, base, {n}, None, Decided(), {at_once})',
            f'SelfConsistency(text_end, base, 4, None, ConfidentMajority(0.7), {at_once})',
            f'DeepConf(text_end, base, {n}, MeanConfidence(), 0.8, at_once={at_once})',
            f'DeepConf(text_end, plain, 4, LowestGroup(2), 0.8, warmup=2, at_once={at_once})',
        ]
        return draw.choice(forms)

    def stop(self) -> str:
        "Mostly no end; else an id, a string of one or two letters, or a condition."
        token = self.draw.randrange(self.vocab_size)
        letters = ''.join(
            chr(ord('A') + self.draw.randrange(min(8, self.vocab_size))) for _ in 'ab'
        )
        return self.draw.choice(
            ['Stop(eos=())'] * 5
            + [f'Stop(eos=({token},))'] * 2
            + [
                f'Stop(eos=(), strings=({letters[: self.draw.randint(1, 2)]!r},))',
                f'Stop(eos=(), when=Every({self.draw.randint(2, 5)}))',
            ]
        )

    def make(self, cls, depth: int) -> str:
        "An expression for an instance of `cls`; optional parameters are given half of the time."
        arguments = []
        for p in inspect.signature(cls).parameters.values():
            if p.kind in (p.VAR_KEYWORD,) or p.name in (
                'args',
                'estimator',
                'continuation',
                'cost',
            ):
                continue
            if p.kind is p.VAR_POSITIONAL:
                arguments += [self.drafter(depth + 1) for _ in range(self.draw.randint(2, 3))]
                continue
            optional = p.default is not p.empty
            value = self.value(cls, p.name, depth)
            if value is None and not optional:
                raise LookupError(
                    f'{cls.__name__}.__init__ has the parameter {p.name}, which tests/fuzz/parts.py cannot make: '
                    'add it to Maker.value, or the class to LEFT_OUT with the reason'
                )
            if self.enumerated and p.name in (
                'shape',
                'nodes',
            ):  # the defaults are too many to enumerate
                optional = False
            if p.name == 'mask':  # its default is read from the model, and ours name none
                optional = False
            if value is not None and (not optional or self.draw.random() < 0.5):
                arguments.append(f'{p.name}={value}')
        return f'{cls.__name__}({", ".join(arguments)})'

    def value(self, cls, name: str, depth: int) -> str | None:
        "An expression for a parameter; None where there is none."
        draw, last = self.draw, self.vocab_size - 1
        small = 2 if self.enumerated and not self.deep else 5
        integer = lambda low, high: str(draw.randint(low, high))
        number = lambda low, high: str(round(draw.uniform(low, high), 2))
        ids = lambda n: str(draw.sample(range(last), min(n, last)))
        if name == 'lm' and cls.__name__ == 'PardDrafter':  # a model, not heads
            return draw.choice(['draft', 'target'])
        if name == 'lm':
            other = cls.__name__ in (
                'UniversalDrafter',
                'StringRejectionDrafter',
                'TokenIntersectionDrafter',
            )
            return 'other' if other else draw.choice(MODELS)
        if name == 'heads':
            return cls.__name__.removesuffix('Drafter').lower()
        if name == 'shape':
            shapes = ['(2, 1)', '(3, 2, 1)', '(1, 1, 1)', '(4,)']
            if self.enumerated:
                shapes = ['(1, 1)', '(2,)', '(2, 1)']
            if self.deep:
                shapes = ['(1, 1, 1)', '(2, 1, 1)', '(1, 2, 1)']
            return draw.choice(shapes)
        makers = dict(
            drafter=lambda: self.drafter(depth + 1),
            base=lambda: (
                None if cls.__name__ in ('DRY',) else draw.choice(['Greedy()', 'Sample()'])
            ),
            layer=lambda: '1',
            replace=lambda: draw.choice(['True', 'False']),
            joint=lambda: draw.choice(['True', 'False']),
            carry=lambda: draw.choice(['True', 'False']),
            max_tokens=lambda: integer(1, small),
            max_draft=lambda: integer(1, small),
            nodes=lambda: integer(1, 3 if self.enumerated else 9),
            expand=lambda: integer(1, 2 if self.enumerated else 3),
            window=lambda: integer(1, 3),
            sinks=lambda: integer(0, 2),
            bits=lambda: draw.choice(['4', '8']),
            group=lambda: draw.choice(['2', '4']),
            recent=lambda: integer(0, 3),
            ngram=lambda: integer(2, 3),
            guesses=lambda: integer(1, 2 if self.enumerated else 4),
            width=lambda: integer(1, 3),
            min_match=lambda: integer(1, 2),
            bias=lambda: integer(0, 3),
            mask=lambda: integer(0, last),
            max_ngram=lambda: integer(2, 4),
            min_ngram=lambda: integer(1, 2),
            depth=lambda: integer(1, small),
            factor=lambda: number(0.5, 3),
            ranks=lambda: '(0.5, 0.3)',
            acceptance=lambda: number(0.1, 0.9),
            seed=lambda: integer(0, 9),
            costs=lambda: 'RoundCosts((1.0, 1.1, 1.2), 0.1)',
            rule=lambda: f'FixedLookahead({integer(1, 6)})',
            price=lambda: number(0.01, 1),
            credit=lambda: number(0.1, 3),
            k=lambda: integer(1, 6),
            up=lambda: integer(1, 3),
            down=lambda: integer(1, 3),
            max_k=lambda: integer(5, 9),
            min_k=lambda: '1',
            threshold=lambda: number(0.05, 0.8),
            min_probability=lambda: number(0.01, 0.5),
            h=lambda: number(0.2, 0.9),
            temperature=lambda: number(0.4, 2),
            top_k=lambda: integer(1, last),
            top_p=lambda: number(0.3, 0.95),
            min_p=lambda: number(0.01, 0.4),
            typical_p=lambda: number(0.3, 0.95),
            top_h=lambda: number(0.2, 0.9),
            epsilon_cutoff=lambda: number(0.01, 0.2),
            eta_cutoff=lambda: number(0.01, 0.2),
            n=lambda: number(0.5, 3),
            repetition_penalty=lambda: number(1.05, 2),
            no_repeat_ngram_size=lambda: integer(2, 3),
            multiplier=lambda: number(0.2, 2),
            sequence_bias=lambda: (
                f'{{({draw.randint(0, last)},): {number(-2, 2)}, ({draw.randint(0, last)}, 1): 1.5}}'
            ),
            suppress_tokens=lambda: ids(2),
            bad_words_ids=lambda: f'[{ids(1)}, {ids(2)}]',
            min_length=lambda: integer(1, 8),
            min_new_tokens=lambda: integer(1, 5),
            forced_bos_token_id=lambda: integer(0, last),
            forced_eos_token_id=lambda: integer(0, last),
            begin_suppress_tokens=lambda: ids(2),
            after=lambda: integer(0, 3),
            eos=lambda: integer(0, last),
            tau=lambda: number(0.5, 3),
            eta=lambda: number(0.05, 0.5),
        )
        maker = makers.get(name)
        return maker() if maker else None
