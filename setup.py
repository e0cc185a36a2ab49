"""The packages, which pyproject.toml cannot name.

They are what is in decodelab/, and experiments/ as a part of it, so that an installed package can run them.
"""

from setuptools import find_namespace_packages, setup

EXPERIMENTS = [
    'decodelab.experiments',
    'decodelab.experiments.results',
    'decodelab.experiments.sources',
]

setup(
    packages=[*find_namespace_packages(include=['decodelab*']), *EXPERIMENTS],
    package_dir={'decodelab.experiments': 'experiments'},
)
