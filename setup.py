"""The packages, which pyproject.toml cannot name, and the docstrings and stubs of the modules.

The packages are those in decodelab/, and experiments/ as a part of it, so that an installed package can
run them. A built module has the comments beside its parameters in its docstrings, where `help()` finds them.
Where cells add methods to its classes, which type checkers do not see otherwise, a stub stands beside it.
"""

import sys
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / 'tools'))
import stubs
from parameter_docs import document_folder

EXPERIMENTS = [
    'decodelab.experiments',
    'decodelab.experiments.board',
    'decodelab.experiments.results',
    'decodelab.experiments.sources',
]


class BuildDocumented(build_py):
    "Copies the modules, writes stubs beside the copies and parameters into their docstrings."

    def finalize_options(self):
        super().finalize_options()
        self.force = True  # a copy of an earlier build has its parameters already

    def run(self):
        super().run()
        if not self.editable_mode:
            package = Path(self.build_lib) / 'decodelab'
            stubs.write(package)
            document_folder(package)


setup(
    packages=[*find_namespace_packages(include=['decodelab*']), *EXPERIMENTS],
    package_dir={'decodelab.experiments': 'experiments'},
    cmdclass=dict(build_py=BuildDocumented),
)
