"""The licence of each package of the corpus that trained the embedded models, from installed metadata.

`python tools/corpus_licences.py` reads the names and versions of `decodelab/weights/pico/corpus.json` and writes
`docs/corpus_licences.csv`; it needs these versions installed, and keeps the rows of those that are not. The licence
is the one that the metadata state: an SPDX expression where there is one, else the `License` field or classifier,
written as SPDX, and for a bare "BSD" the number of clauses of the licence file.
"""

import csv
import json
import re
import sys
from importlib.metadata import distribution, packages_distributions

from repo import ROOT

CORPUS = ROOT / 'decodelab' / 'weights' / 'pico' / 'corpus.json'
TABLE = ROOT / 'docs' / 'corpus_licences.csv'
COLUMNS = 'package', 'distribution', 'version', 'licence', 'source', 'files', 'characters'
# a pattern of the stated name -> SPDX
NAMES = {
    r'^mit\b': 'MIT',
    r'^apache': 'Apache-2.0',
    r'^isc\b': 'ISC',
    r'^bsd.3': 'BSD-3-Clause',
    r'^bsd.2': 'BSD-2-Clause',
    r'^mozilla|^mpl': 'MPL-2.0',
    r'^license agreement for matplotlib': 'LicenseRef-matplotlib',  # modelled on Python's
    r'^psf|^python software': 'PSF-2.0',
}


def as_spdx(stated):
    "A stated licence as SPDX, None for one that states too little (`BSD`, a whole licence text)."
    text = stated.strip()
    if re.fullmatch(r'[\w.+-]+( (AND|OR|WITH) [\w.+-]+)+', text):
        return text
    return next((spdx for pattern, spdx in NAMES.items() if re.match(pattern, text, re.I)), None)


def clauses(package):
    "The BSD licence of a distribution by its text: with the third clause or without."
    files = [
        f
        for f in package.files or ()
        if re.match(r'(licen[cs]e|copying)(\.(txt|md|rst))?$', f.name, re.I)
    ]
    text = ' '.join(f.read_text(encoding='utf-8') for f in files if f.locate().exists())
    text = text or package.metadata['License'] or ''
    if not re.search('redistribution', text, re.I):
        return None
    return 'BSD-3-Clause' if re.search(r'neither the name|endorse', text, re.I) else 'BSD-2-Clause'


def licence(package):
    "`(SPDX, where it is stated)` of a distribution; raises `ValueError` if it states none."
    metadata = package.metadata
    classifiers = [c.rpartition(' :: ')[2] for c in metadata.get_all('Classifier') or ()]
    named = [c for c in classifiers if re.search(r'license|licence', c, re.I)]
    if metadata['License-Expression']:
        return metadata['License-Expression'], 'License-Expression'
    for stated, source in [
        (metadata['License'] or '', 'License'),
        *((c, 'classifier') for c in named),
    ]:
        if as_spdx(stated):
            return as_spdx(stated), source
    if clauses(package):
        return clauses(package), 'licence file'
    raise ValueError(f'{metadata["Name"]} {metadata["Version"]} states no licence that is known')


def stored():
    "Package -> its row of the table."
    if not TABLE.exists():
        return {}
    with TABLE.open(newline='', encoding='utf-8') as file:
        return {row['package']: row for row in csv.DictReader(file)}


def row_of(package, facts, homes):
    "The row of a package of the corpus; None if its version is not installed."
    if package == 'python':
        return dict(distribution='CPython', licence='PSF-2.0', source='LICENSE of CPython')
    for name in sorted(set(homes.get(package, ()))):
        home = distribution(name)
        if home.version == facts['version']:
            spdx, source = licence(home)
            return dict(distribution=home.metadata['Name'], licence=spdx, source=source)
    return None


def table():
    "The rows of the corpus, in its order."
    homes, known = packages_distributions(), stored()
    for package, facts in json.loads(CORPUS.read_text(encoding='utf-8')).items():
        row = row_of(package, facts, homes) or known.get(package)
        if row is None or row.get('version', facts['version']) != facts['version']:
            raise ValueError(f'install {package} {facts["version"]} to read its licence')
        yield dict(package=package) | row | facts


def main():
    rows = list(table())
    with TABLE.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
        writer.writeheader()
        writer.writerows(rows)
    print(len(rows), 'packages', file=sys.stderr)


if __name__ == '__main__':
    main()
