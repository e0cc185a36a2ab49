"The packages, which pyproject.toml cannot say: what is in decodelab/, and experiments/ as a part of it, so that an installed package can run them."
from setuptools import find_namespace_packages, setup

setup(packages=[*find_namespace_packages(include=['decodelab*']), 'decodelab.experiments', 'decodelab.experiments.results'],
      package_dir={'decodelab.experiments': 'experiments'})
