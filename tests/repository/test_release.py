"What a release needs: pinned workflows with least rights, one version, locks, citation, and places that open the notebooks."

import json
import re
import tomllib
from configparser import ConfigParser

import pytest
import release
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repo import ROOT, project

WORKFLOWS = sorted((ROOT / '.github' / 'workflows').glob('*.yml'))
FORMS = sorted((ROOT / '.github' / 'ISSUE_TEMPLATE').glob('*.yml'))
PINNED = re.compile(r'uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$')
workflows = pytest.mark.parametrize('path', WORKFLOWS, ids=lambda p: p.stem)


def jobs(path):
    return yaml.safe_load(path.read_text())['jobs']


# Workflows


@workflows
def test_actions_are_pinned_to_commits(path):
    lines = [line.strip() for line in path.read_text().splitlines() if 'uses:' in line]
    assert lines
    assert [line for line in lines if not PINNED.search(line)] == []


def test_an_action_has_one_version_everywhere():
    lines = re.findall(r'uses: (\S+)@(\w+)', '\n'.join(p.read_text() for p in WORKFLOWS))
    assert len({name for name, _ in lines}) == len(set(lines))


@workflows
def test_workflows_have_the_least_rights(path):
    "None for the whole, what it needs for each job, and no credentials left in a checkout."
    workflow = yaml.safe_load(path.read_text())
    assert workflow['permissions'] == {}
    for name, job in workflow['jobs'].items():
        assert 'permissions' in job, name
        assert job['timeout-minutes'] <= 40, name
        for step in job['steps']:
            if step.get('uses', '').startswith('actions/checkout'):
                assert step['with']['persist-credentials'] is False
        writes = {right for right, level in job['permissions'].items() if level == 'write'}
        assert not writes or name in ('deploy', 'publish', 'release')


def test_only_the_last_jobs_of_a_release_may_publish():
    path = ROOT / '.github' / 'workflows' / 'release.yml'
    publish, made = jobs(path)['publish'], jobs(path)['release']
    assert publish['permissions'] == {'id-token': 'write'}
    assert publish['environment']['name'] == 'pypi'
    assert set(publish['needs']) == {'build', 'try', 'site'}
    assert "github.ref_type == 'tag'" in publish['if']
    assert publish['steps'][-1]['with']['attestations'] is True
    assert made['needs'] == 'publish'
    assert 'secrets.' not in path.read_text()


def test_a_release_is_tried_in_a_bare_environment():
    steps = jobs(ROOT / '.github' / 'workflows' / 'release.yml')['try']['steps']
    assert any('tools/bare.py dist/*.whl' in step.get('run', '') for step in steps)
    text = (ROOT / 'tools' / 'bare.py').read_text() + (ROOT / 'tools' / 'release.py').read_text()
    assert 'from repo' not in text, 'both run before anything is installed'


def test_every_supported_python_is_tested():
    versions = jobs(ROOT / '.github' / 'workflows' / 'ci.yml')['test']['strategy']['matrix'][
        'python'
    ]
    named = re.findall(r':: Python :: (3\.\d+)"', (ROOT / 'pyproject.toml').read_text())
    assert versions == ['3.11', '3.13', '3.14']
    assert set(versions) <= set(named)
    assert project()['project']['requires-python'] == f'>={named[0]}'


# A version


CHANGELOG = '# Changelog\n\n## 1.2.0 (2026-12-01)\n\n### A\n- b\n\n## 1.1.0 (not released)\n\n- c\n'


def test_the_paragraph_of_a_version():
    assert release.paragraph('1.2.0', CHANGELOG) == ('2026-12-01', '### A\n- b')
    assert release.paragraph('1.1.0', CHANGELOG) == ('not released', '- c')
    with pytest.raises(ValueError, match='1.3.0'):
        release.paragraph('1.3.0', CHANGELOG)


@pytest.mark.parametrize(
    'tag, number, words',
    [
        ('v1.2.0', '1.2.0', []),
        ('v1.2.1', '1.2.0', ['the tag is v1.2.1']),
        ('v1.1.0', '1.1.0', ['write the day']),
        ('v1.3.0', '1.3.0', ['has no']),
        ('1.2.0', '1.2.0', ['tag v1.2.0']),
    ],
)
def test_a_tag_that_is_no_release_is_rejected_with_its_reason(tag, number, words):
    lines = list(release.problems(tag, number, CHANGELOG))
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines))


def test_another_version_is_set_in_one_file():
    text = release.replaced('1.2.3rc1', (ROOT / 'settings.ini').read_text())
    settings = ConfigParser()
    settings.read_string(text)
    assert settings['DEFAULT']['version'] == '1.2.3rc1'
    with pytest.raises(ValueError, match='is no version'):
        release.replaced('v1', text)


def test_no_other_file_states_the_version():
    "settings.ini is the source; nbdev writes __init__.py, the changelog has its history."
    assert 'version' in project()['project']['dynamic']
    assert 'version' not in yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    assert 'version' not in json.loads((ROOT / '.zenodo.json').read_text())


def test_nbdev_3_reads_what_nbdev_2_reads():
    settings = ConfigParser()
    settings.read(ROOT / 'settings.ini')
    for name, value in project()['tool']['nbdev'].items():
        assert str(value) == settings['DEFAULT'][name], name


# Locks and groups


@pytest.mark.parametrize('name', ['dev', 'release'])
def test_a_lock_has_the_tested_versions_with_hashes(name):
    "`python tools/lock.py` writes it again."
    text = (ROOT / 'requirements' / f'{name}.txt').read_text()
    entries = re.findall(r'^([\w.\[\]-]+)==(\S+)(.*?)(?=^\S|\Z)', text, flags=re.M | re.S)
    assert len(entries) > 20
    assert [n for n, _, rest in entries if 'sha256:' not in rest] == []
    locked = {canonicalize_name(n.partition('[')[0]): version for n, version, _ in entries}
    rows = [
        line.split('#')[0].strip() for line in (ROOT / 'constraints.txt').read_text().splitlines()
    ]
    pins = dict(row.split('==') for row in rows if row)
    pins = {canonicalize_name(n): version for n, version in pins.items()}
    assert {n: v for n, v in locked.items() if pins.get(n, v) != v} == {}
    assert 'http' not in text.replace('httpx', '').replace('httpcore', '')


def test_the_development_lock_has_all_that_development_installs():
    lock = (ROOT / 'requirements' / 'dev.txt').read_text()
    names = {canonicalize_name(n) for n in re.findall(r'^([\w.-]+)==', lock, flags=re.M)}
    extras = project()['project']['optional-dependencies']
    needed = [
        *project()['project']['dependencies'],
        *extras['dev'],
        *extras['lab'],
        *extras['site'],
    ]
    required = {canonicalize_name(Requirement(r).name) for r in needed} - {'decodelab'}
    assert required - names == set()


def test_groups_are_the_extras():
    groups = project()['dependency-groups']
    extras = project()['project']['optional-dependencies']
    for name in ('dev', 'docs'):
        (requirement,) = map(Requirement, groups[name])
        assert requirement.name == 'decodelab'
        assert requirement.extras <= set(extras)


# Around it


def test_the_citation_and_the_archive_name_the_same_work():
    citation = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
    archive = json.loads((ROOT / '.zenodo.json').read_text())
    assert citation['cff-version'] == '1.2.0'
    assert citation['title'] == archive['title']
    assert citation['license'] == archive['license'] == project()['project']['license']
    assert citation['repository-code'] == project()['project']['urls']['Repository']
    assert citation['abstract'].strip() in archive['description']
    assert [a['name'] for a in citation['authors']] == [c['name'] for c in archive['creators']]


@pytest.mark.parametrize('path', FORMS, ids=lambda p: p.stem)
def test_issue_forms_are_forms(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == 'config':
        assert {link['name'] for link in form['contact_links']} >= {'A vulnerability'}
        return
    assert form['name']
    assert form['description']
    for part in form['body']:
        assert part['type'] in ('input', 'textarea', 'dropdown', 'checkboxes', 'markdown')
        assert part['attributes']['label']
    assert len({part['id'] for part in form['body']}) == len(form['body'])


def test_dependabot_watches_actions_versions_and_hooks():
    config = yaml.safe_load((ROOT / '.github' / 'dependabot.yml').read_text())
    kinds = {update['package-ecosystem'] for update in config['updates']}
    assert kinds == {'github-actions', 'pip', 'pre-commit'}
    assert all(update['groups'] for update in config['updates'])


def test_binder_and_the_devcontainer_install_the_tested_versions():
    script = (ROOT / 'binder' / 'postBuild').read_text()
    assert "pip install --no-cache-dir -c constraints.txt -e '.[lab]'" in script
    assert (ROOT / 'binder' / 'postBuild').stat().st_mode & 0o100
    container = json.loads((ROOT / '.devcontainer' / 'devcontainer.json').read_text())
    assert "-c constraints.txt -e '.[dev]'" in container['postCreateCommand']
    opened = container['customizations']['codespaces']['openFiles']
    assert opened
    assert [name for name in opened if not (ROOT / name).exists()] == []


def test_pytest_is_strict():
    options = project()['tool']['pytest']['ini_options']
    assert {'--strict-config', '--strict-markers'} <= set(options['addopts'])
    assert options['xfail_strict'] is True
    assert options['filterwarnings'][0] == 'error'


def test_sessions_of_nox_run_the_commands_of_the_workflows():
    text = (ROOT / 'noxfile.py').read_text()
    scripts = [f"'sh', 'tests/{name}'" for name in ('run.sh', 'engines/run.sh')]
    for command in ("'zizmor', '--offline', '.github'", *scripts, "'docs/build.py'"):
        assert command in text
    assert tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['mypy']['strict'] is True
