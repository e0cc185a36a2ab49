"Checks the links between the pages of a built site, without a network: pages, anchors, pictures, scripts."

import os
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    "The addresses that a page refers to, and the anchors that it has."

    def __init__(self, path):
        super().__init__()
        self.targets = []
        self.anchors = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {v for k, v in attributes if k == 'id' or (tag == 'a' and k == 'name')}
        self.targets += [v for k, v in values.items() if k in ('href', 'src') and v]


def check(folder):
    "`(number of links between pages, a line for each that leads nowhere)` of a folder of HTML."
    folder = Path(folder).resolve()
    parsed = {path: Page(path) for path in sorted(folder.rglob('*.html'))}
    checked, dead = 0, []
    for path, page in parsed.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            here = path.parent / unquote(parts.path) if parts.path else path
            file = Path(os.path.normpath(here))
            anchor = unquote(parts.fragment)
            if not file.is_file() or not file.is_relative_to(folder):
                dead.append(f'{path.relative_to(folder)}: no file {target}')
            elif anchor and file in parsed and anchor not in parsed[file].anchors:
                dead.append(f'{path.relative_to(folder)}: no anchor {target}')
    return checked, dead


if __name__ == '__main__':
    n, problems = check(sys.argv[1])
    print(*problems, f'{n} links between pages, {len(problems)} of them dead', sep='\n')
    sys.exit(bool(problems) or not n)
