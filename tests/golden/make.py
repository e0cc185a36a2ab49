"""Makes `search.json`: what transformers 4.49, the last line with all four in its core, returns for diverse beam search, constrained beam search, contrastive search and DoLa on the models of tiny.py.

    python -m venv peer && peer/bin/pip install "torch==2.13.0" "transformers==4.49.0" numpy
    peer/bin/python tests/golden/make.py  # or, for some of them: … make.py dola diverse

The file: `models` (name: recipe and fingerprint) and `cases`, each a dictionary:
- `name`, `strategy` ('diverse', 'constrained', 'contrastive', 'dola'), `model`, `prompts` (lists of ids without padding; a batch was padded with id 0, on the left, on the right for encoders), `args` of `generate` (its defaults elsewhere, no sampling);
  constraint objects stand as `{"phrasal": ids}` or `{"disjunctive": [ids, …]}`;
- `tokens`: for each returned sequence its new ids, cut behind the first eos (beams always print the first eos of a list, whichever was said); `scores` of beams, rounded to 9 digits; or `error`, its type and message;
- `alone`: the tokens of all prompts, each run by itself, where the batch says something else;
- `unmet`: which of these sequences lack a constraint in their new ids;
- `fixed`: `{defect: tokens}`, where the original without this one defect (FIXES), each prompt run by itself, says something else; 'all constrained' without any but the last.

The original casts scores to float32 even when the model is float64. Each case is run as shipped, in float64 throughout, and in float64 with the weights changed by a relative 1e-9 and 1e-6:
a case whose tokens are not the same in all of these is a near tie and is left out; `left_out` counts them. The stored scores are those in float64."""

import contextlib
import copy
import functools
import itertools
import json
import random
import re
import sys
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers.generation import beam_constraints, beam_search, logits_process, utils
from transformers.modeling_attn_mask_utils import AttentionMaskConverter

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tiny import build, fingerprint

MODELS = {
    'gpt2': dict(family='gpt2', seed=8),
    'gpt2-b': dict(family='gpt2', seed=0),
    'gpt2-untied': dict(family='gpt2', seed=2, tied=False),
    'gpt2-2': dict(family='gpt2', seed=2, layers=2),
    'gpt2-3': dict(family='gpt2', seed=2, layers=3),
    'gpt2-12': dict(family='gpt2', seed=1, layers=12, width=16),
    'gpt2-1': dict(family='gpt2', seed=3, layers=1),
    'llama': dict(family='llama', seed=4),
    'llama-untied': dict(family='llama', seed=3, tied=False),
    'llama-41': dict(family='llama', seed=2, layers=41, width=16, heads=2),
    'llama-42': dict(family='llama', seed=1, layers=42, width=16, heads=2, tied=False),
    'opt': dict(family='opt', seed=3),
    'opt-b': dict(family='opt', seed=7),
    'opt-untied': dict(family='opt', seed=1, tied=False),
    'gpt2-sharp': dict(family='gpt2', seed=8, embed=15.0),
    't5': dict(family='t5', seed=8),
    't5-b': dict(family='t5', seed=4),
    'bart': dict(family='bart', seed=5),
    'bart-b': dict(family='bart', seed=9),
}
PROMPTS = [
    [3, 9, 27, 5, 61, 14, 8, 40, 2, 33, 17],
    [12, 70, 6, 6, 45],
    [7],
    [50, 31, 22, 64, 19, 11, 3, 58],
    [66, 5, 72, 10, 41, 29],
    [23, 4, 4, 23, 4, 4, 23],
    [38, 77, 16],
    [44, 13, 68, 25, 9, 30, 57, 2, 71],
]
BATCH, EVEN = (
    [PROMPTS[0], PROMPTS[1], PROMPTS[3]],
    [PROMPTS[1], PROMPTS[4][:5], [23, 4, 4, 23, 9]],
)  # of lengths 11, 5, 8 and of one length
DECODERS, SEQ2SEQ = ['gpt2', 'llama', 'opt'], ['t5', 'bart']
EVERY = DECODERS + SEQ2SEQ


# ---- running one case ------------------------------------------------------------------------------------------------
class Float64:
    "torch for the generation code, with float64 where it says float32."

    float = float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


@contextlib.contextmanager
def patched(*changes):
    "`(object, name, value)` set for a while."
    before = [(o, n, getattr(o, n)) for o, n, _ in changes]
    try:
        for o, n, v in changes:
            setattr(o, n, v)
        yield
    finally:
        for o, n, v in reversed(before):
            setattr(o, n, v)


def wide(self):
    "`Tensor.float` that keeps float64 in the generation code and in T5's attention."
    where = sys._getframe(1).f_globals['__name__']
    return (
        self.double()
        if where.startswith('transformers.generation') or where.endswith('modeling_t5')
        else self.to(torch.float32)
    )


def mask_of_any_dtype(
    input_ids_shape,
    dtype,
    device,
    past_key_values_length=0,
    sliding_window=None,
    real=AttentionMaskConverter._make_causal_mask,
):
    "Transformers' own; newer torch refuses its float64 minimum while the default is float32."
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return real(input_ids_shape, dtype, device, past_key_values_length, sliding_window)
    finally:
        torch.set_default_dtype(before)


AttentionMaskConverter._make_causal_mask = staticmethod(mask_of_any_dtype)


def constraint(c):
    return (
        beam_constraints.PhrasalConstraint(c['phrasal'])
        if 'phrasal' in c
        else beam_constraints.DisjunctiveConstraint(c['disjunctive'])
    )


def generate(model, prompts, args, scores=True):
    "`(tokens, scores)` of one call."
    longest, left = max(map(len, prompts)), not model.config.is_encoder_decoder
    pads = [longest - len(p) for p in prompts]
    ids = torch.tensor([[0] * n + p if left else p + [0] * n for n, p in zip(pads, prompts)])
    mask = torch.tensor(
        [[0] * n + [1] * len(p) if left else [1] * len(p) + [0] * n for n, p in zip(pads, prompts)]
    )
    args = dict(args)
    if 'constraints' in args:
        args['constraints'] = [constraint(c) for c in args['constraints']]
    out = model.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=scores,
        **args,
    )
    eos = args.get('eos_token_id')
    eos = eos if isinstance(eos, list) else [eos]
    new = out.sequences[:, ids.shape[1] if left else 1 :].tolist()
    end = lambda row: next((i + 1 for i, t in enumerate(row) if t in eos), len(row))
    new = [row[: end(row)] for row in new]
    result = getattr(out, 'sequences_scores', None)
    return new, None if result is None else [round(s, 9) for s in result.tolist()]


def run(model, case, fix=(), exact=True, prompts=None):
    "`(tokens, scores)` or `(None, error)`."
    prompts = prompts or case['prompts']
    with contextlib.ExitStack() as stack:
        if exact:
            stack.enter_context(
                patched(
                    (torch.Tensor, 'float', wide),
                    (utils, 'torch', Float64()),
                    (beam_search, 'torch', Float64()),
                )
            )
        for f in fix:
            stack.enter_context(patched(*FIXES[f]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter('ignore')
        try:
            return generate(
                model, prompts, case['args'], scores=exact
            )  # as shipped, groups of a float64 model cannot give scores
        except Exception as e:
            error = [type(e).__name__, str(e).strip().split('\n')[0][:160]]
        if (
            'infer dtype of NoneType' in error[1]
        ):  # hypotheses that break their constraints have no beam indices, which only a call that asks for scores needs
            try:
                return generate(model, prompts, case['args'], scores=False)
            except Exception:
                pass
        return None, error


def perturbed(model, size):
    "A copy with every weight changed by a relative `size`, up or down."
    other = copy.deepcopy(model)
    gen = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1 + size * (torch.randint(0, 2, p.shape, generator=gen) * 2 - 1))
    return other


# ---- the original without its defects -------------------------------------------------------------------------------
START, ENDS = 0, []  # where the generated tokens begin; the ids that end a text


class Tracked(beam_constraints.ConstraintListState):
    "What is generated is what counts, not what the prompt says."

    def reset(self, token_ids):
        super().reset(None if token_ids is None else token_ids[START:])


def noting_start(method):
    def inner(self, *args, decoder_prompt_len=0, eos_token_id=None, **kwargs):
        global START, ENDS
        START, ENDS = decoder_prompt_len, [] if eos_token_id is None else eos_token_id.tolist()
        return method(
            self, *args, decoder_prompt_len=decoder_prompt_len, eos_token_id=eos_token_id, **kwargs
        )

    return inner


def keeping(method):
    "`step_sentence_constraint` with the branch that is never called: a complete text proposes its likeliest next token; none proposes an end."

    def inner(self, batch_idx, input_ids, vocab_scores, *args):
        vocab_scores = vocab_scores.clone()
        vocab_scores[:, ENDS] = -torch.inf
        return method(self, batch_idx, input_ids, vocab_scores, *args, push_progress=True)

    return inner


def words(c):
    return [c.token_ids] if isinstance(c, beam_constraints.PhrasalConstraint) else c.token_ids


class Substrings(beam_constraints.ConstraintListState):
    "A constraint is met when one of its words has been said, each time a word is said one of those that wait for it; words may overlap. In progress are the longest words begun at the end of the text."

    def __init__(self, constraints):
        super().__init__(constraints)
        self.reset([])

    def reset(self, token_ids):
        self.text, self.todo = [], list(self.constraints)
        for token in token_ids or []:
            self.add(token)
        self.completed = not self.todo

    def add(self, token):
        self.text.append(token)
        ended = {tuple(w) for c in self.todo for w in words(c) if self.text[-len(w) :] == list(w)}
        for word in sorted(ended, key=len, reverse=True):
            c = next((c for c in self.todo if list(word) in words(c)), None)
            self.todo = [other for other in self.todo if other is not c]
        self.completed = not self.todo

    def begun(self, word):
        return max(n for n in range(len(word)) if n == 0 or self.text[-n:] == word[:n])

    def depth(self, c):
        return max(map(self.begun, words(c)))

    def get_bank(self):
        half = [self.max_seqlen - c.seqlen + self.depth(c) for c in self.todo if self.depth(c)]
        return (len(self.constraints) - len(self.todo)) * self.max_seqlen + max(half, default=0)

    def advance(self):
        best = max(map(self.depth, self.todo))
        return list(
            dict.fromkeys(
                w[best]
                for c in self.todo
                for w in words(c)
                if best < len(w) and (best == 0 or self.text[-best:] == w[:best])
            )
        )

    def copy(self, stateful=True):
        new = type(self)(self.constraints)
        if stateful:
            new.text, new.todo = list(self.text), list(self.todo)
            new.completed = self.completed
        return new


class Overlapping(Substrings):
    "As Substrings, the prompt counted as the original does."


class Generated(Substrings):
    "As Substrings, for what is generated."

    def reset(self, token_ids):
        super().reset((token_ids or [])[START:])


def unshared(self, stateful=False):
    "`DisjunctiveConstraint.copy` whose copy has its own list."
    new = beam_constraints.DisjunctiveConstraint(self.token_ids)
    if stateful:
        new.current_seq, new.completed = list(self.current_seq), self.completed
    return new


def back(self):
    self.completed, self.fulfilled_idx = False, -1


class Banks(Float64):
    "torch for the constrained scorer, with banks so far apart that no score outweighs one."

    def tensor(self, data, *args, **kwargs):
        made, where = torch.tensor(data, *args, **kwargs), sys._getframe(1)
        is_banks = (
            where.f_code.co_name == 'step_sentence_constraint'
            and 'all_states' in where.f_locals
            and 'all_banks' not in where.f_locals
        )
        return made * 10_000 if is_banks else made


def last(method):
    "`BeamHypotheses.add` that ranks a text which breaks a constraint behind all that keep it."

    def inner(self, hyp, score, *args, **kwargs):
        where = sys._getframe(1)
        if where.f_code.co_name == 'finalize' and not where.f_locals[
            'self'
        ].check_completes_constraints(hyp.tolist()):
            score -= 1e9
        return method(self, hyp, score, *args, **kwargs)

    return inner


SCORER = None  # the beam scorer that was made last


class FreeGroups(logits_process.HammingDiversityLogitsProcessor):
    "A group that was finished before this step has chosen nothing: its padding is not counted."

    def __call__(self, input_ids, scores, current_tokens, beam_group_idx):
        if beam_group_idx == 0:
            self.over = SCORER._done.tolist()
        size, vocab = self._num_sub_beams, scores.shape[-1]
        scores = scores.clone()
        for b in range(len(current_tokens) // self._num_beams):
            for g in range(beam_group_idx):
                at = b * self._num_beams + g * size
                if not self.over[b * SCORER.num_beam_groups + g]:
                    scores[b * size : (b + 1) * size] -= self._diversity_penalty * torch.bincount(
                        current_tokens[at : at + size], minlength=vocab
                    )
        return scores


def noting_scorer(method):
    def inner(self, *args, **kwargs):
        global SCORER
        method(self, *args, **kwargs)
        SCORER = self

    return inner


def per_row(measure):
    "`_dola_select_contrast` with a layer for each row."

    def select(layers, logits, final):
        if len(layers) == 1:
            return real_select(layers, logits, final)
        rows = []
        for b in range(len(final)):
            mature, early = (
                final[b].double().log_softmax(-1),
                torch.stack([logits[j][b].double().log_softmax(-1) for j in layers]),
            )
            best = layers[int(measure(mature[None], early).argmax())]
            rows.append(real_select([best], {best: logits[best][b : b + 1]}, final[b : b + 1]))
        return torch.cat(rows)

    return select


def official(mature, early):
    mean = 0.5 * (mature.exp() + early.exp())
    return 0.5 * (
        F.kl_div(mature.expand_as(early), mean, reduction='none').mean(-1)
        + F.kl_div(early, mean, reduction='none').mean(-1)
    )


def recorded(method):
    "Hands the decoder the encoder's mask."

    @functools.wraps(method)
    def inner(self, *args, **kwargs):
        inputs = method(self, *args, **kwargs)
        return inputs | (
            dict(attention_mask=kwargs['attention_mask'])
            if self.config.is_encoder_decoder and 'attention_mask' in kwargs
            else {}
        )

    return inner


def jsd(mature, early):
    mean = (0.5 * (mature.exp() + early.exp())).log()
    return 0.5 * ((mature.exp() * (mature - mean)).sum(-1) + (early.exp() * (early - mean)).sum(-1))


real_select = utils._dola_select_contrast
scorer = beam_search.ConstrainedBeamSearchScorer
group_scorer = beam_search.BeamSearchScorer
starts = [
    (scorer, 'process', noting_start(scorer.process)),
    (scorer, 'finalize', noting_start(scorer.finalize)),
]
right = [
    *starts,
    (beam_search, 'ConstraintListState', Generated),
    (beam_search, 'torch', Banks()),
    (beam_search.BeamHypotheses, 'add', last(beam_search.BeamHypotheses.add)),
]
pushed = [(scorer, 'step_sentence_constraint', keeping(scorer.step_sentence_constraint))]
FIXES = {  # defect: what is put in its place
    'prompt': [*starts, (beam_search, 'ConstraintListState', Tracked)],  # the prompt counts
    'overlap': [
        (beam_search, 'ConstraintListState', Overlapping)
    ],  # no way back inside a word; a token that breaks one word is not tried for another; one token serves one word
    'shared': [
        (beam_constraints.DisjunctiveConstraint, 'copy', unshared)
    ],  # copies of a disjunction share their progress
    'reset': [
        (beam_constraints.PhrasalConstraint, 'reset', back)
    ],  # a phrase that is reset counts its first token as said
    'banks': [(beam_search, 'torch', Banks())],  # a score beyond 100 outweighs a bank
    'incomplete': [
        (beam_search.BeamHypotheses, 'add', last(beam_search.BeamHypotheses.add))
    ],  # texts that break a constraint are returned ahead of those that keep it, where fewer keep it than are asked for
    'all constrained': right,  # all of these
    'dropped': right
    + pushed,  # and, at the root of most failures: a text that has met its constraints is only gone on with while it is among the best B of all: its next token is no candidate by itself, and a costly text is lost
    'done groups': [
        (group_scorer, '__init__', noting_scorer(group_scorer.__init__)),
        (utils, 'HammingDiversityLogitsProcessor', FreeGroups),
    ],  # the padding of finished groups is penalised
    'divergence': [
        (utils, '_dola_select_contrast', per_row(jsd))
    ],  # not the Jensen-Shannon divergence, and one layer for the batch
    'encoder mask': [
        (
            utils.GenerationMixin,
            'prepare_inputs_for_generation',
            recorded(utils.GenerationMixin.prepare_inputs_for_generation),
        )
    ],  # the padding of a batch of encoder texts is read
    'one layer': [(utils, '_dola_select_contrast', per_row(official))],  # one layer for the batch
}
TRIED = dict(
    diverse=['done groups'],
    constrained=[
        'prompt',
        'overlap',
        'shared',
        'reset',
        'banks',
        'incomplete',
        'all constrained',
        'dropped',
    ],
    contrastive=[],
    dola=['divergence'],
)


# ---- the cases -------------------------------------------------------------------------------------------------------
def grid(strategy, model, prompts=None, **args):
    return dict(
        strategy=strategy,
        model=model,
        prompts=[PROMPTS[0]] if prompts is None else prompts,
        args=dict(max_new_tokens=12, pad_token_id=0) | args,
    )


def outputs(models, model, prompts, n=12, at=3, beams=1):
    "The token that greedy or beam search says `at` this place: an eos that will be met."
    case = dict(
        prompts=prompts,
        args=dict(max_new_tokens=n, pad_token_id=0) | (dict(num_beams=beams) if beams > 1 else {}),
    )
    tokens, _ = run(models[model], case)
    return next((t for t in tokens[0][at:] if t > 1), tokens[0][-1])


def diverse(models):
    "num_beams, groups, penalty, length_penalty, early_stopping, returned sequences, eos, rules, batches."

    def case(model, beams, groups, penalty, prompts=None, **args):
        return grid(
            'diverse',
            model,
            prompts,
            num_beams=beams,
            num_beam_groups=groups,
            diversity_penalty=penalty,
            num_return_sequences=args.pop('returned', beams),
            **args,
        )

    for i, model in enumerate(EVERY):
        for beams, groups, penalty in [
            (2, 2, 0.5),
            (4, 2, 0.5),
            (6, 3, 0.8),
            (4, 4, 1.2),
            (6, 2, 0.2),
        ]:
            yield case(model, beams, groups, penalty, [PROMPTS[i]])
        eos = outputs(models, model, [PROMPTS[i]], at=2)
        pairs = list(itertools.product((True, False, 'never'), (0.0, 1.0, 2.0, -1.0)))
        for early, length in pairs if model in ('gpt2', 'bart') else pairs[i::4]:
            yield case(
                model,
                4,
                2,
                0.5,
                [PROMPTS[i]],
                eos_token_id=eos,
                early_stopping=early,
                length_penalty=length,
            )
        for early in (True, False):
            yield case(
                model,
                6,
                3,
                0.9,
                [PROMPTS[i]],
                eos_token_id=eos,
                pad_token_id=eos,
                early_stopping=early,
            )
        yield case(
            model,
            4,
            4,
            3.0,
            [PROMPTS[i]],
            eos_token_id=eos,
            pad_token_id=eos,
            early_stopping=True,
            length_penalty=0.0,
        )
        yield case(
            model,
            6,
            3,
            0.6,
            [PROMPTS[i]],
            eos_token_id=[eos, outputs(models, model, [PROMPTS[i]], at=4)],
            early_stopping=bool(i % 2),
        )
        yield case(model, 4, 2, 0.7, EVEN, eos_token_id=outputs(models, model, EVEN, at=3))
        yield case(model, 6, 2, 1.0, BATCH, returned=2)
        yield case(
            model,
            6,
            3,
            0.4,
            EVEN,
            eos_token_id=outputs(models, model, EVEN, at=1),
            early_stopping='never',
            returned=4,
        )
        yield case(model, 4, 2, 0.5, [PROMPTS[i + 1]], repetition_penalty=1.3)
        yield case(model, 4, 2, 0.5, [PROMPTS[i + 1]], no_repeat_ngram_size=2, returned=3)
        yield case(model, 4, 4, 0.9, [PROMPTS[i]], eos_token_id=eos, min_new_tokens=5)
    for model in ('gpt2', 't5'):
        yield case(model, 4, 2, 0.5, max_new_tokens=1)
        yield case(model, 4, 2, 0.5, [PROMPTS[2]], returned=1)
        yield case(model, 3, 3, 100.0, returned=3)
    yield case('llama', 4, 2, 0.5, BATCH, repetition_penalty=1.4)
    yield case(
        'opt',
        4,
        2,
        0.5,
        BATCH,
        eos_token_id=outputs(models, 'opt', BATCH, at=2),
        early_stopping=True,
        length_penalty=0.5,
    )
    yield case('gpt2', 4, 3, 0.5)  # four beams do not make three groups
    yield case('gpt2', 4, 2, 0.0)  # no penalty
    yield case('gpt2', 4, 2, 0.5, returned=5)


def ranked(models, model, prompts, ranks):
    "The tokens of these ranks in the distribution behind the first prompt."
    m, ids = models[model], torch.tensor([prompts[0]])
    with torch.no_grad():
        row = (
            m(input_ids=ids, decoder_input_ids=torch.tensor([[m.config.decoder_start_token_id]]))
            if m.config.is_encoder_decoder
            else m(ids)
        ).logits[0, -1]
    order = row.argsort(descending=True).tolist()
    return [order[r] for r in ranks]


def ending(models, case):
    "An eos that a constrained search meets: said late, no part of a constraint."
    tokens, words = (
        run(models[case['model']], case)[0],
        set(
            re.findall(
                r'\d+', str([case['args'].get(n) for n in ('force_words_ids', 'constraints')])
            )
        ),
    )
    late = [t for row in tokens for t in row[5:] if t > 1 and str(t) not in words]
    return case | dict(args=case['args'] | dict(eos_token_id=max(late, key=late.count)))


def constrained(models):
    "Phrases, disjunctions, several constraints, objects, penalties, early stopping, eos, overlaps, prompts that say the phrase, sets that cannot be met, batches."

    def case(model, words, prompts=None, beams=4, **args):
        given = {} if words is None else dict(force_words_ids=words)
        return grid(
            'constrained',
            model,
            prompts,
            num_beams=beams,
            num_return_sequences=args.pop('returned', 1),
            **given,
            **args,
        )

    rng = random.Random(6)
    for i, model in enumerate(EVERY):
        p = [PROMPTS[i]]
        a, b, c, d, e, f = rng.sample([t for t in range(3, 80) if t not in PROMPTS[i]], 6)
        x, y, z = ranked(models, model, p, (1, 3, 7))
        eos = outputs(models, model, p, at=3)
        for words in (
            [[x]],
            [[a]],
            [[a, b]],
            [[y, c, d]],
            [[x], [a]],
            [[a, b], [c, d]],
            [[a], [b], [c, d, e]],
            [[[a], [b, c]]],
            [[[y, a], [z, b], [c, d, e]]],
            [[[a, b], [c, d]], [x]],
            [[a, b], [a, c]],
            [[[a, b], [a, c]]],
        ):
            yield case(model, words, p, returned=1 + len(words) % 3, beams=3 + len(words[0]))
        yield case(model, [[a, a, b]], p)
        yield case(model, [[x, x, y]], p, beams=6, returned=3)
        yield case(model, [[a, b], [b, c]], p, beams=5)
        yield case(model, [[a, b, c], [b, d]], p, beams=6)
        yield case(
            model,
            None,
            p,
            constraints=[dict(phrasal=[a, b]), dict(disjunctive=[[c], [d, e]])],
            returned=2,
        )
        yield case(model, [[x, y]], p, constraints=[dict(phrasal=[z])])
        pairs = list(itertools.product((True, False, 'never'), (1.0, 0.0, -1.0)))
        for early, length in pairs if model in ('llama', 't5') else pairs[i::3]:
            yield ending(
                models,
                case(
                    model,
                    [[x]] if early else [[x], [z]],
                    p,
                    early_stopping=early,
                    length_penalty=length,
                    returned=2,
                ),
            )
            if early is True:
                yield ending(
                    models,
                    case(
                        model,
                        [[x, y]],
                        p,
                        early_stopping=early,
                        length_penalty=length,
                        beams=6,
                        returned=3,
                    ),
                )
        yield case(
            model,
            [[a], [x]],
            p,
            eos_token_id=[eos, outputs(models, model, p, at=5)],
            length_penalty=2.0,
            beams=6,
            returned=4,
        )
        yield case(model, [[a, b]], BATCH)
        yield case(model, [[a, b], [x]], EVEN, returned=2)
        yield ending(models, case(model, [[[y], [c, d]]], EVEN, returned=2, length_penalty=0.5))
        yield case(model, [[a, b]], p, repetition_penalty=1.3)
        yield case(model, [[x, a]], p, no_repeat_ngram_size=2, returned=2)
        yield case(model, [[a, b]], p, eos_token_id=eos, min_new_tokens=6)
        if model in DECODERS:
            yield case(model, [PROMPTS[i][1:3] or PROMPTS[i]], p, returned=2)  # the prompt says it
        if model in DECODERS:
            yield case(model, [[PROMPTS[i][-1], a]], p)  # the prompt ends with its first token
    for model in ('gpt2', 't5'):
        yield case(model, [[20, 21, 22, 24, 26]], max_new_tokens=3)  # longer than the text may be
        yield case(model, [[20, 21]], max_new_tokens=6, eos_token_id=21)  # holds the eos
        yield case(model, [[35]], max_new_tokens=1)
        yield case(model, [[5, 6], [5, 6]], max_new_tokens=8)  # twice the same
        yield case(
            model, [[46, 47], [48, 49], [51, 52]], max_new_tokens=60, beams=8
        )  # long: scores beyond 100
        yield case(model, [[46, 47], [48, 49]], [PROMPTS[2]], max_new_tokens=16, beams=2)
    yield case('llama', [[46, 47, 48]], max_new_tokens=90, beams=3, repetition_penalty=1.5)
    yield case('gpt2', [[5], [[]]])
    yield case('gpt2', [[5], []])
    for words in ([[46, 47], [48]], [[46, 47, 48]], [[[35, 36], [37, 39]], [46]]):
        yield case('gpt2-sharp', words, beams=5, returned=3)  # a step can cost more than 100
    yield case('gpt2', [[[5], [5, 6]]])  # a word begins another
    yield case('gpt2', [])
    yield case('gpt2', [[5]], beams=1)
    yield case('gpt2', [[5]], num_beam_groups=2, diversity_penalty=0.5)


def contrastive(models):
    "penalty_alpha, top_k, low_memory, batches, rules, eos, one new token, prompts of one token, all of the vocabulary."

    def case(model, alpha, k, prompts=None, **args):
        return grid(
            'contrastive',
            model,
            prompts,
            penalty_alpha=alpha,
            top_k=k,
            **dict(max_new_tokens=16) | args,
        )

    for i, model in enumerate(EVERY):
        p = [PROMPTS[i]]
        for alpha, k in [
            (0.0, 4),
            (0.2, 2),
            (0.2, 8),
            (0.6, 3),
            (0.6, 4),
            (0.6, 5),
            (0.9, 4),
            (0.9, 8),
            (1.0, 4),
            (1.0, 2),
        ]:
            yield case(model, alpha, k, p)
        yield case(model, 0.6, 4, p, low_memory=True)
        yield case(model, 0.4, 6, p, low_memory=True)
        yield case(model, 0.6, 4, BATCH, low_memory=True)
        yield case(model, 0.6, 4, BATCH)
        yield case(model, 0.8, 6, EVEN)
        yield case(model, 0.3, 4, EVEN)
        for k in (3, 5):
            base = dict(
                prompts=p, args=dict(max_new_tokens=16, pad_token_id=0, penalty_alpha=0.6, top_k=k)
            )
            yield case(model, 0.6, k, p, eos_token_id=run(models[model], base)[0][0][4 + k])
        for rows in (BATCH, EVEN):
            yield case(
                model,
                0.6,
                4,
                rows,
                eos_token_id=run(
                    models[model],
                    dict(
                        prompts=rows,
                        args=dict(max_new_tokens=16, pad_token_id=0, penalty_alpha=0.6, top_k=4),
                    ),
                )[0][1][6],
            )
        yield case(model, 0.6, 4, [PROMPTS[i + 1]], repetition_penalty=1.3)
        yield case(model, 0.6, 4, BATCH, repetition_penalty=1.3)
        yield case(model, 0.5, 4, [PROMPTS[i + 2]], no_repeat_ngram_size=2)
        yield case(
            model,
            0.6,
            4,
            [PROMPTS[i + 2]],
            eos_token_id=[20 + i, ranked(models, model, [PROMPTS[i + 2]], (0,))[0]],
            min_new_tokens=4,
        )
        yield case(model, 0.6, 4, max_new_tokens=1)
        yield case(model, 0.6, 4, [PROMPTS[2]])
        yield case(model, 0.7, 80, p, max_new_tokens=6)
    yield case('gpt2', 0.6, 81)
    yield case('llama-untied', 0.6, 5, max_new_tokens=40)
    yield case('llama-untied', 0.6, 5, [PROMPTS[2]], max_new_tokens=40)
    yield case('gpt2-untied', 0.5, 6, BATCH, max_new_tokens=24)


def dola(models):
    "Layers low, high and lists, tied and untied, 1 to 42 of them, penalties, eos, batches."

    def case(model, layers, prompts=None, penalty=1.2, **args):
        return grid('dola', model, prompts, dola_layers=layers, repetition_penalty=penalty, **args)

    for model in (
        'gpt2',
        'gpt2-untied',
        'llama',
        'llama-untied',
        'opt',
        'opt-b',
        'opt-untied',
        'gpt2-12',
        'llama-41',
        'llama-42',
    ):
        for layers in ('low', 'high'):
            for penalty in (1.0, 1.2):
                yield case(
                    model, layers, penalty=penalty, prompts=[PROMPTS[1 if penalty == 1.0 else 3]]
                )
    for i, model in enumerate(('gpt2', 'llama', 'llama-untied', 'opt')):
        yield from dola_of(models, case, model, i)
    for layers in ('low', 'high', [0, 1, 2]):
        for model in ('gpt2-3', 'gpt2-2', 'gpt2-1'):
            yield case(model, layers, [PROMPTS[5]])  # three tied layers: low is empty
    for layers in ([], [9], 'middle'):
        yield case('gpt2', layers)
    yield case('t5', 'low')
    yield case('gpt2', 'high', num_beams=2)
    for layers in ([0, 8, 20, 40], [1, 3, 5, 7]):
        yield case('llama-42', layers, [PROMPTS[6]])


def dola_of(models, case, model, i):
    "Layers, batches, ends and penalties of one model; `i` chooses the prompts."
    for layers in ([0], [1], [3], [0, 2], [1, 2, 3], [0, 1, 2, 3]):
        yield case(model, layers, [PROMPTS[i]], penalty=1.2 if len(layers) % 2 else 1.0)
    yield case(model, [2, 3, 9], [PROMPTS[i]])  # there is no ninth
    yield case(model, 'high', BATCH)
    yield case(model, [0, 1, 2, 3], BATCH)
    yield case(model, [2], BATCH)
    yield case(model, 'low', BATCH, penalty=1.0)
    for layers in ('low', 'high', [1, 3]):
        new = run(models[model], case(model, layers, [PROMPTS[i]]))[0][0]
        yield case(model, layers, [PROMPTS[i]], eos_token_id=new[5])
    yield case(model, 'high', [PROMPTS[i]], eos_token_id=[new[3], new[8]])
    yield case(model, 'low', BATCH, eos_token_id=new[4], penalty=1.2)
    yield case(model, 'high', [PROMPTS[i + 1]], no_repeat_ngram_size=2, penalty=1.0)
    yield case(model, 'high', [PROMPTS[i + 1]], eos_token_id=new[1], min_new_tokens=4)
    yield case(model, 'high', [PROMPTS[2]], penalty=1.5)
    yield case(model, 'low', max_new_tokens=1)
    yield case(model, 'high', [PROMPTS[4]], max_new_tokens=24)


def meets(tokens, args):
    "Whether one word of each constraint occurs."
    phrases = [w if isinstance(w[0], list) else [w] for w in args.get('force_words_ids', ())] + [
        [c['phrasal']] if 'phrasal' in c else c['disjunctive'] for c in args.get('constraints', ())
    ]
    occurs = lambda word: any(tokens[i : i + len(word)] == word for i in range(len(tokens)))
    return all(any(map(occurs, words)) for words in phrases)


def examine(models, case):
    "The case with what the original says, or None where a change too small to matter changes it."
    model = models[case['model']]
    tokens, scores = run(model, case)
    tries = [
        run(model, case, exact=False)[0],
        *(run(other, case)[0] for other in models['perturbed', case['model']]),
    ]
    if any(t != tokens for t in tries):
        return None
    if tokens is None:
        return case | dict(error=scores)
    result = case | dict(tokens=tokens) | ({} if scores is None else dict(scores=scores))
    base, batch = tokens, len(case['prompts']) > 1

    def each(fix):
        return sum((run(model, case, fix, prompts=[p])[0] or [None] for p in case['prompts']), [])

    if batch and (alone := each([])) != tokens:
        base = result['alone'] = alone
    if unmet := [i for i, t in enumerate(base) if t and not meets(t, case['args'])]:
        result['unmet'] = unmet
    fixed = {fix: each([fix]) for fix in TRIED[case['strategy']]}
    heals = 'one layer' if case['strategy'] == 'dola' else None
    if model.config.is_encoder_decoder:
        heals = 'encoder mask'
    if batch and heals:
        assert run(model, case, [heals])[0] == base, (
            case
        )  # without this one, a batch says what its texts say alone
    return result | dict(fixed={fix: t for fix, t in fixed.items() if t != base})


def main(names):
    "Make the cases of these strategies, and keep the file's others."
    assert transformers.__version__.startswith('4.49.'), (
        'Run it with transformers 4.49: see the top of this file.'
    )
    torch.set_num_threads(1)
    models = {name: build(**recipe) for name, recipe in MODELS.items()}
    for name in MODELS:
        models['perturbed', name] = [perturbed(models[name], size) for size in (1e-9, 1e-6)]
    file = Path(__file__).with_name('search.json')
    old = json.loads(file.read_text()) if file.exists() else dict(cases=[], left_out={})
    cases, left_out = [], {}
    for strategy in TRIED:
        if strategy not in names:
            cases += [c for c in old['cases'] if c['strategy'] == strategy]
            left_out[strategy] = old['left_out'].get(strategy, 0)
            continue
        every = list(globals()[strategy](models))
        results = [
            examine(models, dict(name=f'{strategy}-{i:03}') | case) for i, case in enumerate(every)
        ]
        cases += [c for c in results if c]
        left_out[strategy] = results.count(None)
        print(
            strategy,
            len(every),
            'left out',
            left_out[strategy],
            'errors',
            sum('error' in c for c in results if c),
            flush=True,
        )
    used = {c['model'] for c in cases}
    head = dict(
        versions=dict(transformers=transformers.__version__, torch=torch.__version__.split('+')[0]),
        left_out=left_out,
        models={
            n: dict(recipe=MODELS[n], fingerprint=fingerprint(models[n]))
            for n in MODELS
            if n in used
        },
    )
    text = (
        json.dumps(head, separators=(',', ':'))[:-1]
        + ',"cases":[\n'
        + ',\n'.join(json.dumps(c, separators=(',', ':')) for c in cases)
        + '\n]}\n'
    )
    file.write_text(text)


if __name__ == '__main__':
    main(sys.argv[1:] or list(TRIED))
