"""All sources of the site: what the modules beside this one make, as one folder that Sphinx reads."""

import gallery
import model_pages
import pages
import reference
import replays
from pages import ROOT

PICTURES = '*.svg', 'explorers/*.png', 'tutorials/*.svg', 'tutorials/*.png'


def written_by_hand(site):
    "Name -> text of the pages of docs/, with what is made in the positions of their comments."
    texts = {
        name: site.relink(path.read_text(encoding='utf-8'), path)
        for path, name in site.pages.items()
        if path.suffix == '.md' and path.is_relative_to(ROOT / 'docs') and path.exists()
    }
    tasks = '\n'.join(pages.task_list(texts['howto.md']))
    texts['index.md'] = pages.insert(
        texts['index.md'], pages.FIRST_SCREEN, pages.first_screen(site)
    )
    texts['howto.md'] = pages.insert(texts['howto.md'], pages.TASKS, tasks)
    texts['guides.md'] = pages.insert(texts['guides.md'], pages.GUIDE_ROWS, pages.guide_rows())
    texts['board.md'] = pages.insert(texts['board.md'], pages.BOARD_ROWS, pages.board_rows())
    return texts


def experiments_page(site):
    "The front page of the experiments, with the gallery before the numbers."
    head, first, rest = pages.experiments_page(site).partition('\n## ')
    return f'{head}\n\n## Gallery\n\n{gallery.grid(site)}\n{first}{rest}'


def every(site):
    "Name -> text of every page."
    texts = written_by_hand(site)
    for path in [*site.notebooks, *site.experiments]:
        texts[site.pages[path]] = pages.notebook_page(site, path)
    texts |= {f'book/{f.name}/index.md': pages.part_page(site, f) for f in site.folders}
    texts |= reference.sources(site) | model_pages.sources(site)
    texts['book/index.md'] = pages.book_page(site)
    texts['experiments/index.md'] = experiments_page(site)
    texts['experiments/claims.md'] = pages.claims_page(site)
    texts['glossary.md'] = pages.glossary_page()
    return texts


def pictures(site):
    "Path below the sources -> content of pictures and replays of pages, stored and made."
    docs = ROOT / 'docs'
    stored = [path for pattern in PICTURES for path in docs.glob(pattern)]
    found = {path.relative_to(docs).as_posix(): path.read_bytes() for path in stored}
    found |= {name: text.encode() for name, text in model_pages.pictures().items()}
    found |= {f'replays/{name}.html': replays.page(name).encode() for name in replays.REPLAYS}
    return found | dict(gallery.thumbnails(site))


def notebook_files(site):
    "Path below the built site -> notebook, to download."
    paths = [*site.notebooks, *site.experiments]
    return {f'{pages.DOWNLOADS}/{p.relative_to(ROOT).as_posix()}': p for p in paths}


def write_changed(path, content):
    "Write a file if its content is another one: Sphinx reads what is new."
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def write(site, folder):
    "Write the pages that changed, and remove those that are no more; their names."
    texts = every(site)
    for name, text in texts.items():
        write_changed(folder / name, text.encode())
    for name, content in pictures(site).items():
        write_changed(folder / name, content)
    for path in [p for p in folder.rglob('*.*') if p.suffix in ('.md', '.ipynb')]:
        if path.relative_to(folder).as_posix() not in texts:
            path.unlink()
    return sorted(texts)
