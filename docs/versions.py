"""The sites of released versions beside the newest one.

    python docs/versions.py pack HTML FILE    # the built site as an archive, which the release keeps
    python docs/versions.py fetch HTML        # archives of all releases into HTML/v1.2.3/, and versions.json

A release of GitHub has its site as `site.tar.gz`. When the newest site is published, these are unpacked
below it, so that old pages stay where they were without being built again. `fetch` needs `gh`."""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ARCHIVE = 'site.tar.gz'
TAG = re.compile(r'v(\d+)\.(\d+)\.(\d+)')


def pack(html, archive):
    "Write a built site into an archive, with paths from its root."
    with tarfile.open(archive, 'w:gz') as tar:
        for path in sorted(Path(html).iterdir()):
            if not TAG.fullmatch(path.name) and path.name != 'versions.json':
                tar.add(path, path.name)


def unpack(archive, folder):
    "Unpack a site into a folder; raises `tarfile.FilterError` for paths that lead out of it."
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter='data')


def released():
    "The tags of the releases, newest version first."
    command = ['gh', 'release', 'list', '--json', 'tagName', '--limit', '100']
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    tags = [row['tagName'] for row in json.loads(run.stdout)]
    numbered = [tag for tag in tags if TAG.fullmatch(tag)]
    return sorted(numbered, key=lambda tag: [*map(int, TAG.fullmatch(tag).groups())], reverse=True)


def download(tag, folder):
    "The archive of a release; None if it has none."
    command = ['gh', 'release', 'download', tag, '--pattern', ARCHIVE, '--dir', str(folder)]
    run = subprocess.run(command, capture_output=True, text=True)
    path = Path(folder) / ARCHIVE
    return path if run.returncode == 0 and path.exists() else None


def listed(tags):
    "The content of versions.json: the newest site first."
    return [dict(name='newest (main)', path='./')] + [dict(name=t, path=f'{t}/') for t in tags]


def fetch(html):
    "Put the sites of the releases below the newest one; their tags."
    found = []
    for tag in released():
        with tempfile.TemporaryDirectory() as folder:
            archive = download(tag, folder)
            if archive:
                unpack(archive, Path(html) / tag)
                found.append(tag)
    (Path(html) / 'versions.json').write_text(json.dumps(listed(found)))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('command', choices=['pack', 'fetch'])
    parser.add_argument('html')
    parser.add_argument('archive', nargs='?', default=ARCHIVE)
    options = parser.parse_args()
    if options.command == 'pack':
        pack(options.html, options.archive)
    else:
        print('versions:', *fetch(options.html), file=sys.stderr)


if __name__ == '__main__':
    main()
