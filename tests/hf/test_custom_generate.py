"Strategies through transformers' `custom_generate` hook: in its Trainer, exported to folders, loaded from them."

import ast
import copy
import json
import os
import subprocess
import sys

import pytest
import torch
from repo import ROOT

from decodelab import (
    BeamSearch,
    ConstrainedBeamSearch,
    ContrastiveSearch,
    DisjunctiveConstraint,
    DiverseBeamSearch,
    DoLa,
    FixedLookahead,
    Greedy,
    PhrasalConstraint,
    PromptLookupDrafter,
    RepetitionPenalty,
    Sample,
    Speculative,
    Temperature,
    TopP,
    as_custom_generate,
    decode,
    export_custom_generate,
    load,
)
from decodelab.hf.custom_generate_export import (
    portable_source,
    required_modules,
    run_without_decodelab,
    source_of,
)
from decodelab.models.session import EMBEDDED
from decodelab.strategies import (
    Backtracking,
    BudgetForcing,
    Calculator,
    InsertAfter,
    Loop,
    Phrases,
    PreparedPrompt,
    Prepend,
    RepeatedNGram,
    Reread,
    TokenTriggers,
)

MODELS = ROOT.parent / 'shared' / 'data' / 'models'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu', dtype=torch.float32)


@pytest.fixture(scope='module')
def prompt(lm):
    return lm.encode('def read_lines(path):\n    """')


@pytest.fixture(scope='module')
def methods(lm):
    "Strategies that transformers no longer has."
    path = lm.encode(' path')
    other = DisjunctiveConstraint([lm.encode(' file'), lm.encode(' line')])
    return dict(
        dola=DoLa(),
        low=DoLa('low', repetition_penalty=None),
        contrastive=ContrastiveSearch(0.5, 5),
        diverse=DiverseBeamSearch(4, 2, 0.6),
        lookup=Speculative(PromptLookupDrafter(), lookahead=FixedLookahead(4)),
        fast_dola=Speculative(PromptLookupDrafter(), base=DoLa()),
        constrained=ConstrainedBeamSearch([PhrasalConstraint(path), other], 4),
    )


@pytest.fixture(scope='module')
def guide(lm):
    "The custom methods of the generation guide: thinking on, going back, special tokens, prepared inputs."
    end, comma = lm.encode('.')[0], tuple(lm.encode(', and'))
    return dict(
        thinking=BudgetForcing(end, 12, 16, wait=comma),
        unsure=BudgetForcing(end, 0, 20, wait=comma, confidence=0.9, trial_tokens=4),
        hidden=BudgetForcing(end, max_tokens=4, hidden=True),
        back=Backtracking(RepeatedNGram(3)),
        phrases=Backtracking(Phrases([tuple(lm.encode(' a list'))])),
        inserted=TokenTriggers([InsertAfter(tuple(lm.encode(' list')), comma), Calculator()]),
        reread=PreparedPrompt(Reread((end,)), Greedy(RepetitionPenalty(1.2))),
        prefix=PreparedPrompt(Prepend((end, end)), ContrastiveSearch()),
    )


@pytest.fixture(scope='module')
def exported(methods, guide, prompt, tmp_path_factory):
    "`{name: new tokens}` of both, exported, in one Python without decodelab."
    folder = tmp_path_factory.mktemp('exported')
    made = methods | guide
    for name, strategy in made.items():
        export_custom_generate(strategy, folder / name)
    (folder / 'cache').mkdir()
    folders = [folder / name for name in made]
    return dict(
        zip(made, run_without_decodelab(folders, EMBEDDED / 'pico', prompt, 20, folder / 'cache'))
    )


def test_exported_strategies_generate_the_same_without_decodelab(lm, methods, prompt, exported):
    for name, strategy in methods.items():
        assert exported[name] == decode(lm, prompt, strategy, 20).tokens, name


def test_an_exported_recipe_takes_arguments_batches_streamers_and_stop_strings(lm, tmp_path):
    folder = export_custom_generate(ContrastiveSearch(0.6, 4), tmp_path / 'contrastive')
    texts = [lm.encode(t) for t in ('import os\nimport', 'def add(a, b):')]
    longest = max(map(len, texts))
    inputs = dict(
        input_ids=[[1] * (longest - len(t)) + t for t in texts],
        attention_mask=[[0] * (longest - len(t)) + [1] * len(t) for t in texts],
    )
    run = subprocess.run(
        [
            sys.executable,
            '-c',
            BATCH,
            str(EMBEDDED / 'pico'),
            str(folder),
            json.dumps(inputs),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | dict(HF_MODULES_CACHE=str(tmp_path), HF_HUB_OFFLINE='1'),
    )
    assert run.returncode == 0, run.stderr[-3000:]
    outputs = json.loads(run.stdout.splitlines()[-1])
    assert outputs['rows'] == [decode(lm, t, ContrastiveSearch(0.3, 6), 8).tokens for t in texts]
    assert outputs['streamed'] == outputs['one']
    assert outputs['one'][-1] in [i for i in range(lm.vocab_size) if '\n' in lm.decode([i])]


def test_the_methods_of_the_generation_guide_are_recipes(lm, guide, prompt, exported):
    plain = decode(lm, prompt, Greedy(), 20).tokens
    for name, strategy in guide.items():
        assert exported[name] == decode(lm, prompt, strategy, 20).tokens, name
        assert exported[name] != plain, name


def test_the_methods_of_the_generation_guide_through_the_hook_in_batches(lm):
    "transformers' own loop prepares the rows; each is decoded as it is alone, with its processors."
    prompts = ['def read_lines(path):\n    """', 'class Config:\n    """Read']
    lm.tokenizer.pad_token, lm.tokenizer.padding_side = '<|pad|>', 'left'
    inputs = lm.tokenizer(prompts, return_tensors='pt', padding=True)
    end = lm.encode('.')[0]
    for strategy in (
        BudgetForcing(end, 6, 8, wait=tuple(lm.encode(' and'))),
        Backtracking(Loop(2, 8)),
        TokenTriggers([InsertAfter((end,), (end,))]),
        PreparedPrompt(Reread()),
    ):
        rows = lm.model.generate(
            **inputs,
            max_new_tokens=16,
            repetition_penalty=1.1,
            custom_generate=as_custom_generate(strategy),
        )
        for row, prompt in zip(rows[:, inputs['input_ids'].shape[1] :].tolist(), prompts):
            changed = copy.copy(strategy)
            changed.base = Greedy(RepetitionPenalty(1.1))
            want = decode(lm, prompt, changed, 16).tokens
            assert row[: len(want)] == want


BATCH = '''
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'decodelab': raise ImportError('blocked')
sys.meta_path.insert(0, Blocked())
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
weights, folder, inputs, _ = sys.argv[1:]
model, tokenizer = AutoModelForCausalLM.from_pretrained(weights, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(weights)
batch = {k: torch.tensor(v) for k, v in json.loads(inputs).items()}
class Notes:
    given = []
    def put(self, value): self.given += [value.tolist()]
    def end(self): self.given += ['end']
told = dict(custom_generate=folder, trust_remote_code=True)
rows = model.generate(**batch, max_new_tokens=8, penalty_alpha=.3, top_k=6, **told)
one = model.generate(batch['input_ids'][1:], max_new_tokens=40, stop_strings=['\\n'], tokenizer=tokenizer, streamer=Notes(), **told)
n = batch['input_ids'].shape[1]
print(json.dumps(dict(rows=rows[:, n:].tolist(), one=one[0, n:].tolist(), streamed=[t for ts in Notes.given[1:-1] for t in ts])))
'''


def test_bundled_modules_are_those_that_the_notebooks_list():
    defined = lambda text: [
        n.name for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.ClassDef))
    ]
    names = (
        'hf.custom_generate strategies.dola strategies.contrastive_search drafters.prompt_lookup'
    )
    names += (
        ' strategies.diverse_beam_search strategies.constrained_beam_search speculative.verifiers'
    )
    for module in required_modules(names.split()):
        source = source_of(module)
        text = portable_source(source, module)
        assert defined(text) == defined(source)
        assert 'from decodelab' not in text
        assert 'import decodelab' not in text
        new = set(text.split('\n')) - set(source.split('\n'))
        new = [line for line in new if not line.lstrip().startswith('from .')]
        assert len(new) <= 8, module  # imports aside, the rest of it is as it was


@pytest.mark.filterwarnings('ignore')
def test_a_trainer_evaluates_with_any_strategy(tmp_path):
    from transformers import (
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
    )

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=40,
                d_model=16,
                d_kv=8,
                d_ff=32,
                num_layers=1,
                num_heads=2,
                decoder_start_token_id=0,
                pad_token_id=0,
                eos_token_id=1,
            )
        )
    data = [
        dict(input_ids=[5 + i, 6, 7, 1], attention_mask=[1] * 4, labels=[9, 10 + i, 1])
        for i in range(6)
    ]
    column = lambda rows, name: torch.tensor([row[name] for row in rows])
    collate = lambda rows: {name: column(rows, name) for name in rows[0]}
    args = Seq2SeqTrainingArguments(
        output_dir=str(tmp_path),
        predict_with_generate=True,
        per_device_train_batch_size=3,
        per_device_eval_batch_size=3,
        max_steps=3,
        learning_rate=0.05,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy='no',
        generation_max_length=9,
    )
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=data, data_collator=collate)

    def ids_of(**kw):
        return trainer.predict(data, **kw).predictions.tolist()

    before = ids_of(num_beams=1)
    assert (
        ids_of(custom_generate=as_custom_generate(Speculative(PromptLookupDrafter())), num_beams=1)
        == before
    )
    trainer.train()
    after = ids_of(num_beams=1)
    # the weights of now, not of then
    assert after != before
    assert (
        ids_of(custom_generate=as_custom_generate(Speculative(PromptLookupDrafter())), num_beams=1)
        == after
    )
    assert ids_of(custom_generate=as_custom_generate(BeamSearch(3)), num_beams=3) == ids_of(
        num_beams=3
    )


def test_a_pipeline_of_texts_with_padding(lm):
    from transformers import pipeline

    lm.tokenizer.padding_side, side = 'left', lm.tokenizer.padding_side
    try:
        pipe = pipeline('text-generation', model=lm.model, tokenizer=lm.tokenizer)
        texts = ['import os\nimport', 'def add(a, b):\n    return', 'for']
        options = dict(max_new_tokens=10, return_full_text=False, batch_size=3)
        assert pipe(texts, **options, do_sample=False) == pipe(
            texts,
            **options,
            do_sample=False,
            custom_generate=as_custom_generate(Speculative(PromptLookupDrafter())),
        )
        warm = Sample([Temperature(0.7), TopP(0.9)])
        results = [
            o[0]['generated_text']
            for o in pipe(
                texts, **options, do_sample=False, custom_generate=as_custom_generate(warm, seed=2)
            )
        ]
        assert results == [
            lm.tokenizer.decode(
                decode(lm, t, warm, 10, seed=2 + i).tokens, skip_special_tokens=True
            )
            for i, t in enumerate(texts)
        ]
    finally:
        lm.tokenizer.padding_side = side


def test_the_model_and_its_configuration_are_as_before(lm):
    before = lm.model.generation_config.to_dict()
    ids = torch.tensor([lm.encode('import os')])
    lm.model.generate(ids, max_new_tokens=4, custom_generate=as_custom_generate(DoLa()))
    for wrong in (dict(num_beams=2), dict(do_sample=True), dict(dola_layers='low')):
        with pytest.raises(ValueError):
            lm.model.generate(
                ids, max_new_tokens=4, custom_generate=as_custom_generate(Greedy()), **wrong
            )

    class Broken(Greedy):
        def decode(self, request):
            raise RuntimeError('broken inside')

    with pytest.raises(RuntimeError, match='broken inside'):
        lm.model.generate(ids, max_new_tokens=4, custom_generate=as_custom_generate(Broken()))
    assert lm.model.generation_config.to_dict() == before
    assert not lm.model.training


@pytest.mark.filterwarnings('ignore')
@pytest.mark.skipif(
    not (MODELS / 'whisper-fsdd-target').is_dir(),
    reason='no folder shared/data/models beside the checkout',
)
def test_speech_goes_through_the_hook():
    from transformers import WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration.from_pretrained(
        MODELS / 'whisper-fsdd-target', dtype=torch.float32
    ).eval()
    sound = torch.randn(
        2,
        model.config.num_mel_bins,
        2 * model.config.max_source_positions,
        generator=torch.Generator().manual_seed(0),
    )
    plain = model.generate(sound, max_new_tokens=12)
    for strategy in (Greedy(), Speculative(PromptLookupDrafter())):
        assert torch.equal(
            model.generate(sound, max_new_tokens=12, custom_generate=as_custom_generate(strategy)),
            plain,
        )
    assert torch.equal(
        model.generate(
            sound, max_new_tokens=12, num_beams=3, custom_generate=as_custom_generate(BeamSearch(3))
        ),
        model.generate(sound, max_new_tokens=12, num_beams=3),
    )
