"""The state of the stored rows of the experiments, and those that are not fresh measured again.

    python tools/refresh.py status [NAME …]
    python tools/refresh.py refresh [NAME …] --dry-run
    python tools/refresh.py refresh [NAME …] --out DIR --adopt

A refresh runs one experiment after the other, the cheapest first, in a folder with which it can go
on after an interruption (`--resume`). It begins none while other processes use more than half a
core: timing beside other work measures the other work, too. An experiment finds no compiled library
but its own: its times do not depend on what the user has compiled before. With `--adopt` the rows replace the
stored ones after the last run, so that all of them name the same commit.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from figures import FORMATTER, clean_outputs
from repo import use_shared_data

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from decodelab.cli.experiment_command import measure
from decodelab.core.files import write_atomic
from decodelab.evaluate.jobs import git_commit
from decodelab.lab.fingerprint import changed_parts, is_fingerprint
from decodelab.lab.freshness import (
    NOT_HERE,
    STATES,
    Freshness,
    read_provenance,
    short_reason,
    stored_freshness,
)
from decodelab.lab.notebook_runner import format_duration
from decodelab.lab.requirements import (
    RUNNER_PACKAGES,
    cells_of,
    check_installed,
    experiments_folder,
    notebook_of,
    requirements,
)
from decodelab.lab.run_plan import text_table
from decodelab.lab.runner import check_folder, read_record, stem_of


def select_results(
    results: list[Freshness],  # of `stored_freshness`
    scale: str | None = None,  # None: all
    names=(),  # of experiments, or their numbers; (): all
    folder=None,  # of the experiments; None: those of the package
) -> list[Freshness]:
    """The results of one scale, or of some experiments.

    Raises `ValueError` for an experiment of which no rows are stored.
    """
    chosen = [r for r in results if scale in (None, r.scale)]
    chosen_names = [notebook_of(name, folder).stem for name in names]
    for name in chosen_names:
        if not any(r.name == name for r in chosen):
            at_scale = f' --scale {scale}' if scale else ''
            raise ValueError(
                f'no rows of {name} are stored{at_scale.replace("--", "at ")}: measure them with '
                f'decodelab experiment {name}{at_scale}'
            )
    return [r for r in chosen if not chosen_names or r.name in chosen_names]


def status_text(results: list[Freshness]) -> str:
    "Stored results as a table of plain text, with their number in each state."
    rows = [
        [
            '.'.join(filter(None, (r.name, r.scale, r.part))),
            r.state,
            r.origin,
            short_reason(r.reason),
        ]
        for r in results
    ]
    states = [r.state for r in results]
    counts = [f'{states.count(state)} {state}' for state in STATES]
    lines = text_table(['result', 'state', 'measured at', 'why'], rows)
    return '\n'.join([*lines, f'results: {len(results)}, {", ".join(counts)}'])


STAT = Path('/proc/stat')
QUIET = 0.5  # of a core, for others


def machine_seconds(stat: Path = STAT) -> float | None:
    "Seconds in which a core was busy, of all cores since the start; None where it is not known."
    if not stat.is_file():
        return None
    ticks = [int(word) for word in stat.read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]  # idle, and waiting for a disk
    return (sum(ticks) - idle) / os.sysconf('SC_CLK_TCK')


def other_load(
    seconds: float = 3.0,  # of watching
    stat: Path = STAT,
    pause=time.sleep,
) -> float | None:
    "The number of cores that other processes use; None where it cannot be measured."
    begun, own = time.monotonic(), time.process_time()
    busy = machine_seconds(stat)
    if busy is None:
        return os.getloadavg()[0] if hasattr(os, 'getloadavg') else None
    pause(seconds)
    others = machine_seconds(stat) - busy - (time.process_time() - own)
    return round(max(0.0, others / (time.monotonic() - begun)), 2)


def wait_until_quiet(
    stream,  # where the wait is reported, such as sys.stderr
    anyway: bool = False,  # do not wait
    measure=other_load,
    pause=time.sleep,
    between: float = 30.0,  # seconds between two looks
) -> float | None:
    "Wait while other processes use more than half a core; the load of others at the end."
    load = measure()
    while load is not None and load > QUIET and not anyway:
        sentence = f'other processes use {load:.1f} cores, and timing needs less than {QUIET:g}'
        print(f'{sentence}: waiting (--anyway measures now and records the load)', file=stream)
        pause(between)
        load = measure()
    return load


@dataclass(frozen=True)
class Refresh:
    "An experiment to measure again."

    name: str
    minutes: float  # that its whole run takes
    reasons: tuple[str, ...]  # a state and a reason for each of its results


def refresh_plan(
    results: list[Freshness],  # of `stored_freshness`
    scale: str = 'pico',
    names: tuple[str, ...] = (),  # of experiments; (): all
    folder=None,  # of the experiments; None: those of the package
) -> list[Refresh]:
    """The experiments with a stale or unknown result, cheapest first; fresh ones are left out.

    A part beside fresh rows was not written by the run that made them: another would not, either.
    """
    chosen = select_results(results, scale, names, folder)
    fresh = {r.name for r in chosen if r.state == 'fresh' and not r.part}
    reasons = {}
    for result in chosen:
        if result.name not in fresh and result.reason != NOT_HERE and result.state != 'fresh':
            reasons.setdefault(result.name, []).append(f'{result.state}, {result.reason}')
    plan = [
        Refresh(name, requirements(notebook_of(name, folder))[scale]['minutes'], tuple(words))
        for name, words in reasons.items()
    ]
    return sorted(plan, key=lambda item: (item.minutes, item.name))


def plan_text(plan: list[Refresh]) -> str:
    "The order of the measurements, with the time of each."
    if not plan:
        return 'there is nothing to measure again'
    total = 0.0
    rows = []
    for item in plan:
        total += item.minutes
        times = [format_duration(60 * minutes) for minutes in (item.minutes, total)]
        rows.append([item.name, *times, short_reason('; '.join(dict.fromkeys(item.reasons)))])
    lines = text_table(['experiment', 'takes', 'together', 'why'], rows)
    return '\n'.join([*lines, f'experiments: {len(plan)}, {format_duration(60 * total)}'])


def check_adoptable(name: str, scale: str, out: Path):
    "Raises `ValueError` for a run that is not finished, or during which the code changed."
    stem = stem_of(name, scale, False)
    record = read_record(out, stem)
    if not record.get('finished') or not any((out / 'results').glob(f'{stem}.*')):
        raise ValueError(f'there is no finished run of {stem} in {out}: run it first')
    begun = record.get('fingerprint')
    ended = read_provenance(out / 'results' / f'{stem}.json').get('fingerprint')
    both = is_fingerprint(begun) and is_fingerprint(ended)
    parts = changed_parts(begun, ended) if both else []
    if parts:
        raise ValueError(
            f'{"; ".join(parts)} changed during the run of {stem} in {out}: measure it again in '
            'another folder'
        )


def keep_provenance(
    tables: list[Path],  # that a run did not write
    about: Path,  # the provenance that will be replaced
):
    "Give each table without a provenance of its own that of its day."
    for table in tables:
        own = table.with_suffix('.json')
        if about.is_file() and not own.exists():
            write_atomic(own, about.read_bytes())


def adopt_run(
    name: str,
    scale: str,
    out,  # the folder of a finished run
    folder=None,  # of the experiments; None: those of the package
) -> list[str]:
    """Put the rows of a run, and at scale pico its notebook, among the experiments.

    Returns the names of the files that stay as they were. Raises `ValueError` for a run that is not
    finished, or during which the code changed.
    """
    out, folder = Path(out), Path(folder or experiments_folder())
    check_adoptable(name, scale, out)
    stored = folder / 'results'
    stored.mkdir(exist_ok=True)
    new = sorted((out / 'results').glob(f'{name}.{scale}.*'))
    names = {path.name for path in new}
    old = [p for p in sorted(stored.glob(f'{name}.{scale}.*.csv')) if p.name not in names]
    about = f'{name}.{scale}.json'
    keep_provenance(old, stored / about)
    for path in sorted(new, key=lambda path: path.name == about):  # it comes last
        write_atomic(stored / path.name, path.read_bytes())
        own = Path(path.name).with_suffix('.json').name
        if own not in names:  # rows of this day have no provenance of an earlier one
            (stored / own).unlink(missing_ok=True)
    stay = [path.name for path in old]
    return (
        stay if scale != 'pico' or adopt_notebook(name, out, folder) else [*stay, f'{name}.ipynb']
    )


def clean_notebook(path: Path, out: Path) -> str:
    """The text of an executed notebook without what names a run: counts of cells, warnings, its folder.

    Views of widgets and white cards go too, as with `figures.py --clean`.
    """
    nb = json.loads(path.read_text(encoding='utf-8'))
    for name in ('language_info', 'widgets'):
        nb['metadata'].pop(name, None)
    for cell in nb['cells']:
        if cell['cell_type'] == 'code':
            cell['execution_count'] = None
            cell['outputs'] = clean_outputs(cell['outputs'])
    text = json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True)
    prefix = json.dumps(f'{out.absolute()}{os.sep}', ensure_ascii=False)[1:-1]
    return text.replace(prefix, '') + '\n'


def adopt_notebook(name: str, out: Path, folder: Path) -> bool:
    "Store the executed notebook of a run at scale pico; False where ours was edited since."
    executed, notebook = out / f'{name}.pico.ipynb', folder / f'{name}.ipynb'
    if notebook.is_file() and cells_of(executed) != cells_of(notebook):
        return False
    write_atomic(notebook, clean_notebook(executed, out))
    return True


def show_status(args) -> int:
    "Print the state of the stored results, or of those of some experiments."
    results = stored_freshness(args.notebooks)
    print(status_text(select_results(results, args.scale, args.names, args.notebooks)))
    return 0


@contextmanager
def figures_as_stored():
    "Kernels that begin inside draw figures in the form in which `figures.py` stores them."
    with tempfile.TemporaryDirectory() as folder:
        startup = Path(folder) / 'profile_default' / 'startup'  # IPython runs what is in it
        startup.mkdir(parents=True)
        (startup / 'figures.py').write_text(FORMATTER)
        with patch.dict(os.environ, IPYTHONDIR=folder):
            yield


@contextmanager
def without_a_library():
    "Kernels that begin inside find no compiled library, as on a fresh machine, whatever the user's cache has."
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, DECODELAB_CACHE=folder):
        yield


def refresh_one(path: Path, args, out: Path, turn: int) -> int:
    "Measure one experiment again when the machine is quiet; its status."

    def wait():
        return wait_until_quiet(sys.stderr, args.anyway)

    was_finished = read_record(out, stem_of(path.stem, args.scale, False)).get('finished')
    with figures_as_stored(), without_a_library():
        return measure(path, args, out, turn, None if was_finished else wait)


def store_run(path: Path, args, out: Path) -> int:
    "Replace the stored rows by those of a run; 1 where that cannot be, and the others go on."
    try:
        old = adopt_run(path.stem, args.scale, out, args.notebooks)
    except ValueError as error:
        print(f'{path.stem}: {error}', file=sys.stderr)
        return 1
    left = f'; left as they were: {", ".join(old)}' if old else ''
    print(f'{path.stem}: the rows are stored{left}', flush=True)
    return 0


def refresh_experiments(args, out: Path) -> int:
    "Measure again what is stale or unknown, cheapest first; 0 if all went well."
    stored = stored_freshness(args.notebooks)
    plan = refresh_plan(stored, args.scale, tuple(args.names), args.notebooks)
    print(plan_text(plan), flush=True)
    if args.dry_run or not plan:
        return 0
    check_installed('running a notebook', *RUNNER_PACKAGES)
    paths = [notebook_of(item.name, args.notebooks) for item in plan]
    check_folder(paths, out, args.scale, False, args.resume)
    if (git_commit() or '').endswith('-dirty'):
        print(
            'files differ from their commit, and the rows will say so: commit first',
            file=sys.stderr,
        )
    statuses = [refresh_one(path, args, out, turn) for turn, path in enumerate(paths)]
    if args.adopt:
        done = [path for path, status in zip(paths, statuses) if status == 0]
        statuses += [store_run(path, args, out) for path in done]
    return max(statuses)


# As in `decodelab experiment`: options that measure nothing → options that they would ignore.
DRY_RUN_EXCLUDES = ('resume', 'adopt', 'out')


def check_options(args):
    "Raise `ValueError` for options that do not go together."
    wrong = [name for name in DRY_RUN_EXCLUDES if getattr(args, name)]
    if args.dry_run and wrong:
        raise ValueError(f'--dry-run measures nothing: leave --{wrong[0]} out')
    if args.resume and not args.out:
        raise ValueError('--resume needs the folder of the run: give it with --out')


def parser():
    "The arguments of both commands."
    result = argparse.ArgumentParser('python tools/refresh.py', description=__doc__.split('\n')[0])
    commands = result.add_subparsers(dest='command', required=True)
    status = commands.add_parser('status', help='the state of the stored results')
    refresh = commands.add_parser('refresh', help='measure again what is stale or unknown')
    for command in (status, refresh):
        command.add_argument('names', nargs='*', metavar='NAME', help='only these experiments')
        command.add_argument('--scale', choices=('pico', 'gpu', 'paper'))
        command.add_argument('--notebooks', metavar='DIR', help='a folder of experiments')
    refresh.add_argument('--out', metavar='DIR', help='folder of the runs')
    flags = {
        '--resume': 'go on with what was begun in --out; a finished run is left as it is',
        '--fetch': 'models and data that are missing may be fetched; otherwise nothing is',
        '--anyway': 'run even if memory or disk may be too small, or the machine is busy',
        '--dry-run': 'only print what would be measured, and its time',
        '--adopt': 'in the end, put rows and notebooks in place of the stored ones',
    }
    for flag, words in flags.items():
        refresh.add_argument(flag, action='store_true', help=words)
    refresh.set_defaults(quick=False)
    return result


def main(argv=None) -> int:
    "0 if all went well, 1 if a run failed, 2 for wrong arguments."
    args = parser().parse_args(argv)
    try:
        if args.command == 'status':
            return show_status(args)
        check_options(args)
        args.scale = args.scale or 'pico'
        out = Path(args.out or f'runs/experiment-{time.strftime("%Y%m%d-%H%M%S")}')
        return refresh_experiments(args, out)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == '__main__':
    use_shared_data()
    sys.exit(main())
