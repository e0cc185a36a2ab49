"""The first hour of a new user: wrong calls are answered in a sentence, names are found, and what is looked at
shows itself, in a notebook that is not trusted, too."""

import base64
import json
import re
import time
from html.parser import HTMLParser

import nh3
import numpy as np
import pytest
import torch

import decodelab
from decodelab import (
    LM,
    AssistantDrafter,
    DoLa,
    DraftTable,
    EarlyExitDrafter,
    FixedLookahead,
    GreenList,
    Greedy,
    RoundCosts,
    Sample,
    Speculative,
    Temperature,
    TopP,
    Trace,
    as_custom_generate,
    certify,
    decode,
    decode_batch,
    detect,
    embedded_models,
    generate,
    load,
    load_heads,
    load_strategy,
    pipeline,
    random_lm,
    stream,
    tune_lookahead,
)
from decodelab.detection import highlight_tokens
from decodelab.lab.experiment import Experiment
from decodelab.models.loading import EMBEDDED, NANO, NANO_PARAMETERS
from decodelab.watermark import BinomialNull
from decodelab.watermark.base import Watermark
from decodelab.zoo.nano import CONFIGS

PROMPT = 'def is_even(n):\n'


@pytest.fixture(scope='module')
def lm():
    return load('pico', device='cpu')


@pytest.fixture(scope='module')
def draft():
    return load('pico-draft', device='cpu')


def refused(call, kind=(TypeError, ValueError)) -> str:
    "The sentence with which a call is refused: one line, not too long, and with some advice."
    with pytest.raises(kind) as error:
        call()
    words = str(error.value)
    assert '\n' not in words and len(words) < 400 and ': ' in words, words
    return words


# Wrong calls


def test_a_strategy_by_name_or_without_parentheses(lm):
    assert 'give an object such as Greedy()' in refused(lambda: decode(lm, PROMPT, 'greedy'))
    words = refused(lambda: decode(lm, PROMPT, Greedy))
    assert 'the class Greedy' in words and 'with parentheses' in words
    assert 'such as Greedy()' in refused(lambda: decode_batch(lm, [PROMPT], 'greedy'))


def test_a_model_by_name(lm):
    for call in (decode, stream):
        assert "load('pico')" in refused(lambda call=call: call('pico', PROMPT, Greedy()))
    assert "load('pico')" in refused(lambda: decode_batch('pico', [PROMPT], Greedy()))
    assert 'LM(model, tokenizer)' in refused(lambda: decode(lm.model, PROMPT, Greedy()))


def test_several_prompts_where_one_belongs(lm):
    for prompts in (['a', 'b'], ('a',), [[5], [6, 7]], torch.tensor([[5, 6], [7, 8]]), ['1', '2']):
        assert 'decode_batch' in refused(lambda prompts=prompts: decode(lm, prompts, Greedy()))
    inputs = lm.tokenizer(PROMPT, return_tensors='pt')
    assert 'input_ids' in refused(lambda: decode(lm, inputs, Greedy()))
    one = decode(lm, inputs['input_ids'][0], Greedy(), 4)
    assert one.tokens == decode(lm, np.array(one.prompt), Greedy(), 4).tokens


def test_one_processor_needs_no_list(lm):
    processor = Temperature(0.8)
    alone, listed = Sample(processor), Sample([processor])
    assert repr(alone) == repr(listed) == 'Sample(Temperature(0.8))'
    assert decode(lm, PROMPT, alone, 8).tokens == decode(lm, PROMPT, listed, 8).tokens
    two = Sample(Temperature(0.8), TopP(0.9))
    assert repr(eval(repr(two))) == repr(two) == repr(Sample([Temperature(0.8), TopP(0.9)]))


@pytest.mark.parametrize(
    'name, value, class_name',
    [
        ('temperature', 0.8, 'Temperature'),
        ('top_p', 0.9, 'TopP'),
        ('top_k', 5, 'TopK'),
        ('repetition_penalty', 1.3, 'RepetitionPenalty'),
    ],
)
def test_a_setting_of_transformers_names_its_processor(name, value, class_name):
    for base in (Sample, Greedy):
        words = refused(lambda base=base: base(**{name: value}))
        assert f'{base.__name__}({class_name}({value}))' in words
    assert 'logits processors' in refused(lambda: Sample(colour='red'))


def test_a_model_where_a_drafter_belongs(lm, draft):
    prompts = [f'def f{i}(x):' for i in range(6)]
    words = refused(lambda: tune_lookahead(lm, draft, prompts, max_new_tokens=8))
    assert 'AssistantDrafter(' in words and 'drafter' in words
    assert 'AssistantDrafter(' in refused(lambda: DraftTable.build(lm, draft, prompts, 8))
    assert 'AssistantDrafter(' in refused(lambda: decode(lm, PROMPT, Speculative(draft), 8))


def test_a_model_where_a_tokenizer_belongs(lm):
    assert 'lm.tokenizer' in refused(lambda: detect(GreenList(1), 'some text', tokenizer=lm))
    assert detect(GreenList(1), 'some text', tokenizer=lm.tokenizer).p <= 1


def test_a_model_where_a_task_or_a_name_belongs(lm, tmp_path):
    words = refused(lambda: pipeline(lm))
    assert 'pipeline("text-generation", lm' in words
    for call in (load, load_heads, lambda name: load_strategy(name, lm)):
        assert 'give a name or a folder' in refused(lambda call=call: call(lm))


def test_dola_layers_as_a_number(lm):
    ids = torch.tensor([lm.encode(PROMPT)])
    for call in (
        lambda: generate(lm, ids, dola_layers=4, max_new_tokens=4),
        lambda: decode(lm, PROMPT, DoLa(4), 4),
    ):
        assert "'high' or a list of layers, as in [4]" in refused(call)
    assert generate(lm, ids, dola_layers=[4], max_new_tokens=4).shape[1] == ids.shape[1] + 4


def test_a_recipe_without_a_tokenizer(lm, draft):
    ids = torch.tensor([lm.encode(PROMPT)])
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3))

    def run(**options):
        recipe = as_custom_generate(strategy, **options)
        return lm.model.generate(ids, custom_generate=recipe, max_new_tokens=8, do_sample=False)

    words = refused(run)
    assert 'as_custom_generate(strategy, tokenizer=tokenizer)' in words
    assert 'UniversalDrafter' not in words
    plain = decode(lm, PROMPT, Greedy(), 8)
    assert run(tokenizer=lm.tokenizer)[0].tolist() == plain.prompt + plain.tokens


def vision_model():
    "A vision encoder–decoder of random weights, its decoder a GPT-2 with two layers."
    from transformers import GPT2Config, ViTConfig, VisionEncoderDecoderConfig
    from transformers import VisionEncoderDecoderModel

    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    vision = ViTConfig(**sizes, image_size=16, patch_size=8)
    text = GPT2Config(vocab_size=61, n_embd=32, n_layer=3, n_head=2, add_cross_attention=True)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id = config.decoder.bos_token_id = 1
    config.pad_token_id = config.decoder.eos_token_id = 0
    torch.manual_seed(0)
    return VisionEncoderDecoderModel(config).double().eval()


# Names


def test_a_wrong_name_is_answered_at_once():
    start = time.perf_counter()
    words = refused(lambda: load('picoo'))
    assert time.perf_counter() - start < 1
    assert "did you mean 'pico'" in words and 'owner/name' in words
    for name, near in [
        ('pico-drift', 'pico-draft'),
        ('pico-eagel', 'pico-eagle'),
        ('nanno', 'nano'),
    ]:
        assert repr(near) in refused(lambda name=name: load(name))
    for name in ('./nowhere', '/nowhere/at/all', '~/nowhere'):
        assert 'no such folder' in refused(lambda name=name: load(name))


def test_only_a_name_with_a_slash_goes_to_the_hub(monkeypatch):
    asked = []

    def ask(name, **options):
        asked.append(name)
        raise OSError('no network in this test')

    monkeypatch.setattr('transformers.AutoTokenizer.from_pretrained', ask)
    for name in ('picoo', 'someone/model'):
        refused(lambda name=name: load(name))
    assert asked == ['someone/model']


def test_every_model_without_a_download_is_listed():
    table = embedded_models()
    shipped = {p.name for p in EMBEDDED.iterdir() if p.is_dir()}
    assert set(table.index) == shipped | set(NANO) and 'pico-medusa' in table.index
    for name in shipped - {'pico-medusa', 'pico-eagle'}:
        assert load(name, device='cpu').n_params == table.parameters[name]
    assert all(table.use.str.len() > 10)
    if not any(row == 'in the package' for row in table.source[list(NANO)]):
        assert table.source['nano'] == 'decodelab zoo train nano'


def test_the_sizes_of_the_nano_models_are_those_of_their_configurations():
    from decodelab.zoo.training import new_model

    for name in NANO:
        with torch.device('meta'):
            model = new_model(name, 0, CONFIGS)
        assert model.num_parameters() == NANO_PARAMETERS[name]


def test_the_root_has_at_most_a_hundred_names():
    parts = {'core', 'models', 'logits', 'strategies', 'zoo', 'evaluate', 'speculative', 'drafters'}
    parts |= {'tuning', 'watermark', 'detection', 'hf', 'lab'}
    assert len(set(decodelab.__all__) - parts - {'__version__'}) <= 100


# Files of other people


def test_a_trace_in_a_file(lm, tmp_path):
    trace = decode(lm, PROMPT, Greedy(), 6)
    trace.save(tmp_path / 'a.json')
    assert Trace.load(tmp_path / 'a.json') == trace
    assert 'no folder' in refused(lambda: trace.save(tmp_path / 'b' / 'a.json'))
    assert 'there is no file' in refused(lambda: Trace.load(tmp_path / 'absent.json'))
    (tmp_path / 'half.json').write_text(trace.to_json()[:-20])
    assert 'half.json' in refused(lambda: Trace.load(tmp_path / 'half.json'))


@pytest.mark.parametrize('depth', [500, 900, 990, 1100, 5000, 100_000])
@pytest.mark.parametrize('form', ['{}', '{{"decodelab_trace": {}}}', '{{"scheme": {}}}'])
def test_json_that_is_nested_deeply_is_refused(form, depth):
    text = form.format('[' * depth + ']' * depth)
    for read in (Trace.from_json, Watermark.from_json, GreenList.from_json):
        refused(lambda read=read: read(text), ValueError)


# What is looked at


def shown_objects(lm, draft):
    "Name → an object that people look at."
    strategy = Speculative(AssistantDrafter(draft), lookahead=FixedLookahead(3))
    flow = stream(lm, PROMPT, strategy, 12)
    next(flow)
    flow.close()
    needs = dict(models=('pico',), data=(), memory_gb=1, minutes=1)
    return dict(
        lm=lm,
        trace=decode(lm, PROMPT, strategy, 12),
        stream=flow,
        batch=decode_batch(lm, [PROMPT, 'import <b>'], strategy, max_new_tokens=8),
        certificate=certify(Speculative(AssistantDrafter(random_lm(seed=1))), max_new_tokens=6),
        costs=RoundCosts((1.0, 1.5), 0.2),
        table=DraftTable.build(lm, AssistantDrafter(draft), [PROMPT], 8, k=4),
        experiment=Experiment('demo', dict(pico=needs)),
    )


@pytest.fixture(scope='module')
def shown(lm, draft):
    return shown_objects(lm, draft)


class Page(HTMLParser):
    "The text, the elements and the styles of a page."

    def __init__(self, page):
        super().__init__()
        self.text, self.elements, self.styles = '', [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.styles.append(dict(attrs).get('style', ''))

    def handle_data(self, data):
        self.text += data


NAMES = ['lm', 'trace', 'stream', 'batch', 'certificate', 'costs', 'table', 'experiment']


@pytest.mark.parametrize('name', NAMES)
def test_it_shows_itself_as_text_and_as_html(shown, name):
    thing = shown[name]
    assert 10 < len(repr(thing)) < 2000 and not re.search(r'object at 0x', repr(thing))
    page = Page(thing._repr_html_())
    assert len(page.text) > 20
    # No colour of a text or of a whole background, which would be unreadable on one of white and black.
    for style in page.styles:
        assert not re.search(
            r'(?<!-)color:|(?<!\w)(?:white|black)(?!-)|background-color: #', style
        ), style


def test_the_texts_of_a_batch(shown, lm, draft):
    batch = shown['batch']
    assert batch.texts == [trace.text for trace in batch]
    frame = batch.to_frame()
    assert frame.text.tolist() == batch.texts and frame.new_tokens.tolist() == [8, 8]
    assert '&lt;b&gt;' in batch._repr_html_() and '<b>' not in batch._repr_html_().replace(
        '<b>8', ''
    )


# Notebooks that are not trusted

# The elements, attributes and style properties that JupyterLab's sanitiser keeps, as far as they occur here.
KEPT_TAGS = set(
    'a b br code details div em i img li p pre span strong sub summary sup table tbody td th thead tr ul'.split()
)
KEPT_ATTRIBUTES = {
    '*': {'class', 'style', 'title', 'dir', 'hidden', 'lang'},
    'img': {'src', 'alt', 'width'},
}
KEPT_STYLES = '''background-color border border-bottom border-collapse border-top color display font-family font-size
    font-style font-weight height line-height margin margin-right margin-top margin-bottom max-width min-width opacity
    overflow-wrap padding padding-left text-align vertical-align white-space width'''


def sanitised(page: str) -> str:
    "A page as a notebook shows it that is not trusted: no style sheet, no script, no SVG, but its text."
    return nh3.clean(
        re.sub(r'</?(?:svg|g|path|rect|line|text)\b[^>]*>', '', page),
        tags=KEPT_TAGS,
        clean_content_tags={'style', 'script'},
        attributes=KEPT_ATTRIBUTES,
        filter_style_properties=set(KEPT_STYLES.split()),
        url_schemes={'http', 'https', 'data'},
    )


def test_the_sanitiser_of_this_test_strips():
    left = sanitised(
        '<style>a{}</style><svg><text>0 2 4</text></svg><b onclick="x" style="color:red;top:0">y</b>'
    )
    assert left == '0 2 4<b style="color:red">y</b>'


def test_a_trace_keeps_its_spaces_and_colours(shown):
    trace = shown['trace']
    page = Page(sanitised(trace._repr_html_()))
    assert trace.prompt_text + trace.text in page.text
    assert 'prompt drafted' in page.text or 'prompt by the target' in page.text
    text = next(style for style in page.styles if 'white-space' in style)
    assert 'pre-wrap' in text
    for origin, line in [('accepted', 'solid'), ('corrected', 'dashed')]:
        styles = {a['style'] for t, a in page.elements if f'dl-{origin}' in a.get('class', '')}
        assert styles and all('background-color' in s and line in s for s in styles)
    legend = [a['style'] for t, a in page.elements if 'margin-right' in a.get('style', '')]
    assert len(legend) >= 3  # the prompt and two origins, apart from each other


def test_the_watermark_view_keeps_its_axis():
    rng = np.random.default_rng(0)
    null = BinomialNull(0.25)
    pieces = ['def ', 'f', '(x', '):\n', '    return ', ' x'] * 10
    html = highlight_tokens(pieces, null.draw(rng, 60), rng.random(60) < 0.8, null, window=(15, 45))
    page = Page(sanitised(html))
    assert ''.join(pieces) in page.text and not re.search(r'\b0\s*2\s*4', page.text)
    image = next(a for t, a in page.elements if t == 'img')
    svg = base64.b64decode(image['src'].partition('base64,')[2]).decode()
    assert svg.startswith('<svg xmlns=') and '>0</text>' in svg and 'dl-line' in svg
    assert 'at the end' in image['alt']
    inside = [a for t, a in page.elements if 'dl-in' in a.get('class', '') and t == 'span']
    assert len(inside) == 30 + 1 and all('border-top' in a['style'] for a in inside)


@pytest.mark.parametrize('name', NAMES)
def test_nothing_that_is_looked_at_depends_on_a_style_sheet(shown, name):
    html = shown[name]._repr_html_()
    before, after = Page(re.sub(r'<style>.*?</style>', '', html, flags=re.S)), Page(sanitised(html))
    assert after.text == before.text
    count = lambda page: sum(s.count(':') for s in page.styles)  # of declarations
    assert 0 < count(after) == count(before)


def test_html_survives_json(shown):
    json.dumps({name: thing._repr_html_() for name, thing in shown.items()})


def test_an_early_exit_of_a_vision_encoder_decoder():
    from decodelab.drafters.early_exit import decoder_layers

    model = LM(vision_model(), name='vision')
    path, layers = decoder_layers(model)
    assert path == 'decoder.transformer.h' and len(layers) == 3
    pixels = torch.zeros(1, 3, 16, 16, dtype=torch.float64)
    plain = generate(model, pixel_values=pixels, max_new_tokens=6, do_sample=False)
    early = generate(
        model, pixel_values=pixels, max_new_tokens=6, do_sample=False, assistant_early_exit=1
    )
    assert early.tolist() == plain.tolist()
    decoder = model.model.decoder.transformer
    decoder.h = torch.nn.Sequential(*decoder.h)
    assert 'no list of layers' in refused(lambda: decoder_layers(model))
    assert EarlyExitDrafter(1).layer == 1
