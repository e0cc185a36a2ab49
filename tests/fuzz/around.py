"""Strategies around a speculative one, or around its base, against plain computations.

Forced, inserted, prepared and taken-back tokens are compared with loops over the model's full forward pass. Of a
choice among several sequences, each sequence is decoded alone with its own seed, its log-probability is that of the
full forward pass, and the winner is chosen again. A batch has the tokens of single decodes.
"""

import itertools
import math

from decodelab import Greedy, Sample, decode, decode_batch
from decodelab.logits.processor_list import LogitsProcessorList
from decodelab.strategies import count_votes, drawn_sequences
from tests.fuzz.cases import SECONDS, Case, FailedError, Kind, judged, time_limit, world_of
from tests.fuzz.greedy import best_token
from tests.fuzz.models import full_logits
from tests.fuzz.parts import has_ended, namespace

KIND = Kind(8, lengths=(1, 2, 5, 9), new_tokens=tuple(range(1, 13)), around=True)
CHOICES = ('BestOfN', 'SelfConsistency', 'DeepConf')


class TieError(Exception):
    "Two tokens have the same score, or none is allowed."


class Plain:
    "Greedy search of one prompt by the full forward pass."

    def __init__(self, case: Case, target, processors, prompt):
        self.case = case
        self.target = target
        self.prompt = list(prompt)
        self.bound = LogitsProcessorList(processors).bind(case.request(target, prompt))

    def token(self, new, excluded=()) -> int:
        token = best_token(self.target, self.bound, self.prompt + new, tuple(excluded))
        if token is None:
            raise TieError
        return token

    def is_over(self, new) -> bool:
        if not new:
            return False
        return len(new) == self.case.n or has_ended(self.case.stops, self.target, new)


def continued(plain: Plain, new):
    "Pieces of one token, after `new`."
    while True:
        new.append(plain.token(new))
        yield new[-1:]


def forced(strategy, plain: Plain):
    """Pieces under a budget: an early end is a wait, or excluded; at the limit the end is forced.

    An id that ends the text ends a thought, too, and is shown.
    """
    new, s = [], strategy
    stops = plain.case.stops
    eos = plain.target.eos if stops.eos is None else stops.eos
    while True:
        room = math.inf if s.max_tokens is None else s.max_tokens - len(new)
        is_early = len(new) < s.min_tokens
        piece = [s.end]
        if room > 0:
            piece = [plain.token(new, [s.end] * (is_early and not s.wait))]
        is_end = piece == [s.end]
        if is_end and is_early:
            piece = list(s.wait)[: min(room, len(s.wait))]
        new += piece
        ends_text = not is_end and piece[0] in eos
        yield [] if s.hidden and not ends_text else piece
        if is_end and not is_early:
            yield from continued(plain, new)


def inserted(strategy, plain: Plain):
    "Pieces with insertions, of which there are at most some."
    new, left = [], strategy.max_insertions
    while True:
        ids = plain.prompt + new
        insertions = [rule.insert(plain.target, ids) for rule in strategy.triggers if left]
        piece = next(filter(None, insertions), [])
        left -= bool(piece)
        new += piece
        yield piece
        yield next(continued(plain, new))


def taken_back(strategy, plain: Plain):
    "A whole sequence, of which some tokens were rolled back."
    new, excluded = [], [set()]
    rollbacks = 0
    n_final, farthest = 0, 0
    while not plain.is_over(new):
        new.append(plain.token(new, excluded[-1]))
        excluded.append(set())
        back = 0
        if rollbacks < strategy.max_rollbacks:
            back = min(strategy.stuck.take_back(plain.prompt + new), len(new) - n_final)
        if back:
            rollbacks += 1
            at = len(new) - back
            excluded[at].add(new[at])
            del excluded[at + 1 :]
            del new[at:]
        farthest = max(farthest, len(new))
        n_final = max(n_final, min(len(new), farthest + 1 - strategy.stuck.window))
    yield new


PIECES = dict(
    BudgetForcing=forced,
    TokenTriggers=inserted,
    Backtracking=taken_back,
    PreparedPrompt=lambda strategy, plain: continued(plain, []),
)


def plain_tokens(case: Case, target, processors, strategy, prompt) -> list[int]:
    "The tokens of plain computations; raises `TieError`."
    name = case.around.partition('(')[0]
    if name == 'PreparedPrompt':
        prompt = strategy.preparation.prepare(target, list(prompt))
    plain, new = Plain(case, target, processors, prompt), []
    for token in itertools.chain.from_iterable(PIECES[name](strategy, plain)):
        new.append(token)
        if plain.is_over(new):
            break
    return new


def log_probability(target, ids, tokens) -> float:
    "Of tokens after `ids`, by the full forward pass."
    total = 0.0
    for i, token in enumerate(tokens):
        total += float(full_logits(target.model, [*ids, *tokens[:i]]).log_softmax(-1)[token])
    return total


def check_sequences(case: Case, target, base, prompt, trace):
    "Each sequence of a choice is that of its base alone."
    for sequence in drawn_sequences(trace):
        alone = decode(target, prompt, base, case.n, seed=sequence['seed'], stop=case.stops)
        n_drawn = len(sequence['tokens']) if sequence['stopped'] == 'confidence' else case.n
        if list(alone.tokens)[:n_drawn] != sequence['tokens']:
            raise FailedError(f'sequence {sequence} of a choice is {alone.tokens} alone')
        if 'logp' in sequence:
            expected = log_probability(target, prompt, sequence['tokens'])
            if abs(expected - sequence['logp']) > 1e-5 * (1 + abs(expected)):
                raise FailedError(f'{sequence} has the log-probability {expected}')


def check_winner(strategy, trace):
    "The winner is the best of the sequences, or has the answer with most votes."
    drawn, winner = drawn_sequences(trace), trace.steps[0].info['winner']
    by_number = {s['number']: s for s in drawn}
    if list(trace.tokens) != by_number[winner]['tokens']:
        raise FailedError(f'the tokens are {trace.tokens}, not those of sequence {winner}: {drawn}')
    if 'score' in by_number[winner]:
        best = max(drawn, key=lambda s: s['logp'] / len(s['tokens']))['number']
        if best != winner:
            raise FailedError(f'sequence {winner} is chosen, {best} is better: {drawn}')
        return
    info = trace.steps[0].info
    voters = [by_number[i] for i in info.get('voters', by_number)]
    weights = [s['weight'] if 'weight' in s else s.get('confidence', 1) for s in voters]
    counted = count_votes([s['answer'] for s in voters], weights)
    if counted[by_number[winner]['answer']] < max(counted.values()) - 1e-12:
        raise FailedError(f'the answer of sequence {winner} has fewer votes: {counted}')


def check_choice(case: Case, target, base, strategy) -> bool:
    "A choice among several sequences, single and in a batch."
    prompts = [list(p) for p in case.prompts]
    options = dict(stop=case.stops, seed=case.seed)
    traces = [decode(target, p, strategy, case.n, **options) for p in prompts]
    for prompt, trace in zip(prompts, traces):
        check_sequences(case, target, base, prompt, trace)
        check_winner(strategy, trace)
    batch = decode_batch(target, prompts[:1] * 2, strategy, 2, case.n, **options)
    if list(batch[0].tokens) != list(traces[0].tokens):
        raise FailedError(f'{batch[0].tokens} in a batch, {traces[0].tokens} alone')
    return True


def check(case: Case) -> bool:
    "Raise `FailedError` or `RejectedError`; return whether there was anything to compare."
    world = world_of(case.architecture, KIND.vocab_size)
    is_choice = case.around.startswith(CHOICES)
    with time_limit(SECONDS), judged():
        named = world.named(case)
        target, processors = named['target'], case.bound_processors(named)
        plain = Sample(processors) if is_choice else Greedy(processors)
        base = case.strategy(plain, named)
        strategy = eval(case.around, namespace(named | dict(base=base, plain=plain)))
        base = strategy.base
        prompts = [list(p) for p in case.prompts]
        try:
            if is_choice:  # the base alone is the plain computation
                expected = [decode(target, p, base, case.n, stop=case.stops) for p in prompts]
            else:
                expected = [plain_tokens(case, target, processors, strategy, p) for p in prompts]
        except TieError:
            return False
    with time_limit(SECONDS), judged(plain_succeeded=True):
        if is_choice:
            return check_choice(case, target, base, strategy)
        traces = [decode(target, p, strategy, case.n, stop=case.stops) for p in prompts]
        batch = decode_batch(target, prompts, strategy, 3, case.n, stop=case.stops)
    for form, run in dict(single=traces, batch=batch).items():
        tokens = [list(t.tokens) for t in run]
        if tokens != expected:
            raise FailedError(f'tokens {tokens} ({form}) and plain computations have {expected}')
    return True
