"Names of models: a wrong one raises at once, and only a name with a slash is looked up on the Hub."

import time

from decodelab import embedded_models, load
from decodelab.models.loading import EMBEDDED, NANO
from tests.refusals import error_message


def test_a_wrong_name_is_answered_at_once():
    start = time.perf_counter()
    words = error_message(lambda: load('picoo'))
    assert time.perf_counter() - start < 1
    assert "did you mean 'pico'" in words
    assert 'owner/name' in words
    for name, near in [
        ('pico-drift', 'pico-draft'),
        ('pico-eagel', 'pico-eagle'),
        ('nanno', 'nano'),
    ]:
        assert repr(near) in error_message(lambda name=name: load(name))
    for name in ('./nowhere', '/nowhere/at/all', '~/nowhere'):
        assert 'no such folder' in error_message(lambda name=name: load(name))


def test_only_a_name_with_a_slash_goes_to_the_hub(monkeypatch):
    asked = []

    def ask(name, **options):
        asked.append(name)
        raise OSError('no network in this test')

    monkeypatch.setattr('transformers.AutoTokenizer.from_pretrained', ask)
    for name in ('picoo', 'someone/model'):
        error_message(lambda name=name: load(name))
    assert asked == ['someone/model']


def test_every_model_without_a_download_is_listed():
    table = embedded_models()
    shipped = {p.name for p in EMBEDDED.iterdir() if p.is_dir()}
    assert set(table.index) == shipped | set(NANO)
    assert 'pico-medusa' in table.index
    for name in shipped - {'pico-medusa', 'pico-eagle'}:
        assert load(name, device='cpu').n_params == table.parameters[name]
    assert all(table.use.str.len() > 10)
    if not any(row == 'in the package' for row in table.source[list(NANO)]):
        assert table.source['nano'] == 'decodelab zoo train nano'
