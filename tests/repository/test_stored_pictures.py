"""Every stored picture fits light and dark pages: no background, no black text, a title as its text; no table is cut."""

import base64
import io
import json
import re

import nbformat
import numpy as np
import pytest
from repo import ROOT, notebooks, numbered

Image = pytest.importorskip('PIL.Image', reason='comes with matplotlib')
EVERY = [*numbered(), *notebooks('experiments')]
BLACK = 60  # of 255: a colour whose channels are all below it is nearly black
NEAR = 4  # pixels: text on the page is that near to what is transparent
LARGEST = 100_000  # bytes


def stored_pictures(path):
    "`(cell id, PNG, metadata)` of the pictures of a notebook."
    for cell in nbformat.read(path, 4).cells:
        for output in cell.get('outputs', ()):
            data = output.get('data', {})
            if 'image/png' in data:
                png = base64.b64decode(data['image/png'])
                yield cell.id, png, output.metadata.get('image/png', {})


def pixels(png):
    "The pixels of a picture, `(height, width, 4)`."
    return np.asarray(Image.open(io.BytesIO(png)).convert('RGBA'))


def spread(mask, n):
    "A mask and the pixels within `n` of it, along rows and columns."
    for axis in (0, 1):
        wide = np.pad(mask, [(n, n) if i == axis else (0, 0) for i in (0, 1)])
        windows = np.lib.stride_tricks.sliding_window_view(wide, 2 * n + 1, axis)
        mask = windows.any(-1)
    return mask


def black_on_the_page(picture):
    "How many pixels are nearly black, beside ones through which the page is seen."
    alpha = picture[..., 3]
    black = (picture[..., :3].max(-1) < BLACK) & (alpha > 128)
    if not black.any():
        return 0
    return int((black & spread(alpha < 32, NEAR)).sum())


def problems(png, metadata):
    "What is wrong with a picture, a line each."
    picture = pixels(png)
    corners = picture[[0, 0, -1, -1], [0, -1, 0, -1], 3]
    if corners.max() > 0:
        yield 'its corners have a background'
    if black_on_the_page(picture):
        yield f'{black_on_the_page(picture)} nearly black pixels on the page'
    if not metadata.get('alt'):
        yield 'no title, thus no alternative text'
    if picture.shape[1] < 1.9 * metadata.get('width', np.inf):
        yield 'not drawn at twice its size'
    if len(png) > LARGEST:
        yield f'{len(png)} bytes'


def test_every_stored_picture_fits_light_and_dark_pages():
    "`python tools/figures.py NOTEBOOK` draws those of a notebook again."
    counts, wrong = 0, {}
    for path in EVERY:
        name = path.relative_to(ROOT).as_posix()
        for cell, png, metadata in stored_pictures(path):
            counts += 1
            if lines := [f'{cell}: {problem}' for problem in problems(png, metadata)]:
                wrong.setdefault(name, []).extend(lines)
    assert counts > 130
    assert wrong == {}


NOT_STORED = (
    'data-pick="',  # only a kernel answers
    'PanelBox',
    'widget-view+json',
    'needs_background',  # a white card in the dark
)


def test_a_stored_output_has_nothing_to_press_and_no_white_card():
    "`python tools/figures.py --clean NOTEBOOK` removes the cards and the views of widgets."
    wrong = {}
    for path in EVERY:
        for cell in nbformat.read(path, 4).cells:
            text = ' '.join(map(json.dumps, cell.get('outputs', ()))).replace('\\"', '"')
            if words := [word for word in NOT_STORED if word in text]:
                wrong[f'{path.relative_to(ROOT)} {cell.id}'] = words
    assert wrong == {}


# three dots alone stand for rows or columns left out
CUT = re.compile(r'<t[dh][^>]*>[^<]+\.\.\.</t[dh]>')


def test_no_stored_table_is_cut():
    "`pd.set_option('display.max_colwidth', None)` beside the imports shows whole texts."
    assert CUT.search('<td>a sentence of fifty characters that pandas...</td>')
    assert not CUT.search('<th>...</th><td>whole</td><td>...</td>')
    wrong = []
    for path in EVERY:
        for cell in nbformat.read(path, 4).cells:
            tables = (o.get('data', {}).get('text/html', '') for o in cell.get('outputs', ()))
            if any(map(CUT.search, tables)):
                wrong.append(f'{path.relative_to(ROOT)} {cell.id}')
    assert wrong == []


def png_of(picture):
    file = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(file, 'PNG')
    return file.getvalue()


def test_the_check_sees_what_it_should():
    good = dict(alt='a title', width=20)
    clear = np.zeros((40, 40, 4))
    assert list(problems(png_of(clear), good)) == []
    assert list(problems(png_of(clear), dict(width=40))) == [
        'no title, thus no alternative text',
        'not drawn at twice its size',
    ]
    assert list(problems(png_of(clear), {}))[-1] == 'not drawn at twice its size'
    slab = np.full((40, 40, 4), 255)
    assert list(problems(png_of(slab), good)) == ['its corners have a background']
    text = clear.copy()
    text[10:14, 10:20] = (10, 10, 10, 255)
    assert list(problems(png_of(text), good)) == ['40 nearly black pixels on the page']
    boxed = clear.copy()
    boxed[4:36, 4:36] = (200, 220, 255, 255)
    boxed[10:14, 10:20] = (10, 10, 10, 255)  # black on a light box
    assert list(problems(png_of(boxed), good)) == []
