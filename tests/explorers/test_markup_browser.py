"""Text with markup, quotes, bidi controls and NULs is shown in a browser and never runs.

Every page is opened twice: as it is, and under a strict Content-Security-Policy that lets no script run and
nothing load, which must change nothing about what a reader sees.

Skipped if the machine has no browser.
"""

import pytest

from decodelab import BeamSearch, GreenList, decode, detect
from decodelab.core.plot import save_html
from decodelab.core.trace import Step, Trace
from decodelab.detection.highlight import highlight_tokens
from decodelab.evaluate.certify import random_lm
from decodelab.lab.notebook_html import markdown_html, safe_html
from decodelab.strategies.beam_html import beam_html

HOSTILE = (
    '<script>window.hit = 1</script>',
    '<img src=x onerror="window.hit = 2">',
    '"><svg onload="window.hit = 3">',
    "' onmouseover='window.hit = 4' x='",
    '</style></title></textarea><script>window.hit = 5</script>',
    '<a href="javascript:window.hit = 6">link</a>',
    '\u202egpj.exe\u202c \u2066turned\u2069',
    'a\x00b \x1b[31mred\x07',
    '&lt;script&gt; &#60;script&#62;window.hit=7',
    '<iframe srcdoc="<script>parent.hit = 8</script>"></iframe>',
    '`${window.hit = 9}`',
    ']]><!--<script>window.hit = 10</script>-->',
)
CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "script-src 'none'; connect-src 'none'; frame-src 'none'"
)


def look(browser, path, strict: bool) -> dict:
    "What a page shows and did: its text, `window.hit`, dialogs, requests beyond the file, elements that run."
    context = browser.new_context()
    page = context.new_page()
    dialogs, requests = [], []
    page.on('dialog', lambda d: (dialogs.append(d.message), d.dismiss()))
    page.on('request', lambda r: requests.append(r.url))
    if strict:
        body = path.read_text(encoding='utf-8')
        page.route(
            'http://page.test/',
            lambda route: route.fulfill(
                body=body,
                content_type='text/html; charset=utf-8',
                headers={'Content-Security-Policy': CSP},
            ),
        )
        page.goto('http://page.test/')
    else:
        page.goto(path.as_uri())
    for element in page.locator('[onmouseover], a, span, summary').all()[:40]:
        if element.is_visible():
            element.dispatch_event('mouseover')
    result = dict(
        text=page.locator('body').text_content(),
        hit=page.evaluate('window.hit'),
        handlers=page.evaluate(
            "[...document.querySelectorAll('*')].filter(e => [...e.attributes].some(a => "
            "a.name.startsWith('on') || /^\\s*javascript:/i.test(a.value))).length"
        ),
        frames=page.locator('iframe, object, embed').count(),
        dialogs=dialogs,
        requests=[u for u in requests if not u.startswith(('file:', 'http://page.test/', 'data:'))],
    )
    context.close()
    return result


def hostile_trace() -> Trace:
    "A trace whose prompt, tokens, rejected tokens, model and strategy are hostile."
    n = len(HOSTILE)
    steps = [Step([i], drafted=1, accepted=0, rejected=True, draft_tokens=[i]) for i in range(n)]
    trace = Trace([0], steps, metadata=dict(model=HOSTILE[0], strategy=HOSTILE[3], seed=0))
    trace.prompt_text = ' '.join(HOSTILE)
    trace.token_texts = list(HOSTILE)
    trace.rejected_texts = list(HOSTILE)
    trace.stopped = HOSTILE[1]
    return trace


def hostile_text(ids) -> str:
    "Ids as hostile text."
    return ''.join(HOSTILE[i % len(HOSTILE)] for i in ids)


def pages(tmp_path) -> dict:
    "Name → path of a page of each kind."
    trace = tmp_path / 'trace.html'
    save_html([hostile_trace()], trace)
    beams = tmp_path / 'beams.html'
    lm = random_lm()
    run = decode(lm, [1, 2], BeamSearch(3, num_return_sequences=2), 6)
    run.prompt_text = HOSTILE[0]
    run.token_texts = [hostile_text([i]) for i in run.tokens]
    beams.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body>{beam_html(run, hostile_text)._repr_html_()}',
        encoding='utf-8',
    )
    markdown = tmp_path / 'markdown.html'
    body = ''.join(markdown_html(h) + safe_html(h) for h in HOSTILE)
    markdown.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{body}', encoding='utf-8')
    plain = tmp_path / 'repr.html'
    plain.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body>{hostile_trace()._repr_html_()}',
        encoding='utf-8',
    )
    detection = detect(GreenList(1), list(range(30)))
    shown = highlight_tokens(
        [hostile_text([i]) for i in range(30)],
        detection.token_scores.values,
        detection.token_scores.scored,
        detection.null,
        detection.token_scores.contexts,
        HOSTILE[0],
        None,
    )
    highlight = tmp_path / 'highlight.html'
    highlight.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{shown}', encoding='utf-8')
    return dict(highlight=highlight, trace=trace, beams=beams, markdown=markdown, repr=plain)


@pytest.mark.parametrize('name', ['trace', 'beams', 'markdown', 'repr', 'highlight'])
@pytest.mark.parametrize('strict', [False, True], ids=['plain', 'strict policy'])
def test_hostile_text_is_shown_and_never_runs(browser, tmp_path, name, strict):
    result = look(browser, pages(tmp_path)[name], strict)
    assert result['hit'] is None, result
    assert not result['dialogs'], result
    assert not result['requests'], result
    assert result['frames'] == 0, result
    assert result['handlers'] == 0 or name == 'beams', result
    if name in ('trace', 'repr'):
        assert '<script>window.hit = 1</script>' in result['text']
        assert '<img src=x onerror="window.hit = 2">' in result['text']


def test_the_check_would_notice(browser, tmp_path):
    path = tmp_path / 'bad.html'
    path.write_text(f'<!DOCTYPE html><meta charset="utf-8"><body>{HOSTILE[0]}', encoding='utf-8')
    assert look(browser, path, strict=False)['hit'] == 1
    assert look(browser, path, strict=True)['hit'] is None
