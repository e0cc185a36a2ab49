"""What a release checks and says about itself.

    python tools/release.py check v1.2.3   # is the tag the version, and is its paragraph in the changelog dated?
    python tools/release.py notes          # the paragraph of the version
    python tools/release.py set 1.2.4      # write another version

The version is in one place, settings.ini; nbdev writes it into the package, which pyproject.toml reads.
"""

import argparse
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent  # needs nothing installed: it runs before that
SETTINGS = ROOT / 'settings.ini'
CHANGELOG = ROOT / 'CHANGELOG.md'
VERSION = r'\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?'


def version(path=SETTINGS):
    "The version of the package."
    settings = ConfigParser()
    settings.read(path)
    return settings['DEFAULT']['version']


def paragraph(number, text):
    "`(date or other remark, body)` of a version in the changelog; raises `ValueError` if it is not there."
    heading = rf'^## {re.escape(number)} \((.+?)\)\n(.*?)(?=^## |\Z)'
    match = re.search(heading, text, flags=re.M | re.S)
    if match is None:
        raise ValueError(f'CHANGELOG.md has no "## {number} (date)"')
    return match.group(1), match.group(2).strip()


def problems(tag, number, text):
    "Why a tag is no release."
    if tag != f'v{number}':
        yield f'the tag is {tag} and the version {number}: tag v{number}, or change settings.ini'
    try:
        date, body = paragraph(number, text)
    except ValueError as error:
        yield str(error)
        return
    if not re.fullmatch(r'\d{4}-\d\d-\d\d', date):
        yield f'CHANGELOG.md says {number} ({date}): write the day of the release, as 2026-12-31'
    if not body:
        yield f'CHANGELOG.md says nothing about {number}'


def replaced(number, text):
    "The text of settings.ini with another version; raises `ValueError` for one that is no version."
    if not re.fullmatch(VERSION, number):
        raise ValueError(f'{number} is no version: write it as 1.2.3 or 1.2.3rc1')
    return re.sub(r'^version = .*$', f'version = {number}', text, flags=re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('command', choices=['check', 'notes', 'set'])
    parser.add_argument('value', nargs='?', default='', help='a tag to check, a version to set')
    options = parser.parse_args()
    text = CHANGELOG.read_text(encoding='utf-8')
    if options.command == 'check':
        lines = list(problems(options.value, version(), text))
        sys.exit('\n'.join(lines) or 0)
    elif options.command == 'notes':
        print(paragraph(version(), text)[1])
    else:
        SETTINGS.write_text(replaced(options.value, SETTINGS.read_text()))
        subprocess.run(['nbdev_export'], cwd=ROOT, check=True)


if __name__ == '__main__':
    main()
