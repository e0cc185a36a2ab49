"Folds the cells that are hidden from readers (`#| hide`) in JupyterLab: a click opens them."

import json
import sys

from repo import numbered


def is_hidden(cell) -> bool:
    return cell['cell_type'] == 'code' and ''.join(cell['source']).lstrip().startswith('#| hide')


def is_folded(cell) -> bool:
    return cell['metadata'].get('jupyter', {}).get('source_hidden', False)


def unfolded(path) -> list[dict]:
    "The notebook's hidden cells that are open, and others that are folded."
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [cell for cell in cells if is_hidden(cell) != is_folded(cell)]


def fold(path):
    "Fold the hidden cells of a notebook, and no others."
    notebook = json.loads(path.read_text(encoding='utf-8'))
    for cell in notebook['cells']:
        cell['metadata'].pop('jupyter', None)
        if is_hidden(cell):
            cell['metadata']['jupyter'] = dict(source_hidden=True)
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    path.write_text(text + '\n', encoding='utf-8')


if __name__ == '__main__':
    changed = [p for p in [*numbered(), *numbered('experiments')] if unfolded(p)]
    for path in changed:
        fold(path)
    sys.exit(print(f'{len(changed)} notebooks changed'))
