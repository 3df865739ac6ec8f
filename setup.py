# SPDX-License-Identifier: Apache-2.0
"""Packaging of `tfp_rb`."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).resolve().parent
REPOSITORY = 'https://github.com/tfp-rb/tfp_rb'


def _read_version():
  # The version is read as text, because importing the package would require
  # TensorFlow here.
  text = (ROOT / 'tfp_rb' / 'version.py').read_text(encoding='utf-8')
  return re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE).group(1)


def _read_description():
  # A package index shows the README without the files that the README links to,
  # so the links must be absolute.
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  relative = r'\]\((?!https?:)'
  text = re.sub('!(\\[[^]]*)' + relative, rf'!\1]({REPOSITORY}/raw/main/', text)
  return re.sub(relative, f']({REPOSITORY}/blob/main/', text)


EXAMPLES = [
  'absl-py',
  # This is a dependency of TFDS. Newer versions require Python 3.11. If an
  # index does not say so, pip 23 finds out only by trying all versions of
  # everything.
  "etils<1.14; python_version < '3.11'",
  # TFDS 4.9.10 imports `importlib_resources` without requiring it.
  'importlib_resources',
  'matplotlib',
  'tensorboard',  # TensorFlow 2.21 no longer requires it
  'tensorflow-datasets',
  'tqdm',
]
TEST = EXAMPLES + [
  'build',
  'hypothesis',
  # These packages build the documentation site.
  'mkdocs-jupyter',
  'mkdocs-material>=9',
  'mkdocstrings[python]',
  'mypy>=2,<3',
  'pytest',
  'pytest-xdist',
  'ruff>=0.17,<0.18',  # a new minor version may format differently
  'scipy',
  # The packaging test builds a wheel without downloading a build environment.
  'setuptools>=64',
  'wheel',
]
NOTEBOOKS = EXAMPLES + ['ipykernel', 'nbconvert']
RAY = EXAMPLES + ['ray[train]>=2.40']
BENCHMARKS = EXAMPLES + ['hmmlearn', 'storchastic', 'torch', 'torch-struct']

setup(
  name='tfp_rb',
  version=_read_version(),
  description=(
    'Rao-Blackwellized gradients of expectations over discrete '
    'distributions, for TensorFlow Probability'
  ),
  long_description=_read_description(),
  long_description_content_type='text/markdown',
  author='The tfp_rb authors',
  url=REPOSITORY,
  project_urls={
    'Documentation': f'{REPOSITORY}/blob/main/docs/index.md',
    'Changelog': f'{REPOSITORY}/blob/main/CHANGELOG.md',
    'Issues': f'{REPOSITORY}/issues',
  },
  # The first license covers the code, the second the images of digits in
  # `tfp_rb/data`.
  license='Apache-2.0 AND CC-BY-SA-3.0',
  license_files=['LICENSE', 'tfp_rb/data/LICENSE.md'],
  packages=find_packages(include=['tfp_rb', 'tfp_rb.*']),
  package_data={'tfp_rb': ['py.typed', 'data/*']},
  zip_safe=False,
  python_requires='>=3.10,<3.13',
  install_requires=[
    # NumPy 2.4 removed `np.reshape(newshape=...)`, which TFP 0.25, the newest
    # release, calls in `tfb.Pad`. With NumPy 2.4, `tfb.SoftmaxCentered`, the
    # default bijector of `tfd.Dirichlet`, would therefore fail. Drop the bound
    # when the oldest supported TFP works without that argument.
    'numpy>=1.26,<2.4',
    # TFP 0.25 imports `distutils`, which Python 3.12 removed from its standard
    # library; setuptools provides it.
    "setuptools; python_version >= '3.12'",
    'tensorflow>=2.18,<2.22',
    'tensorflow-probability[tf]>=0.25,<0.27',
  ],
  extras_require={
    'examples': EXAMPLES,
    'test': TEST,
    'notebooks': NOTEBOOKS,
    'benchmarks': BENCHMARKS,
    'ray': RAY,
    'dev': sorted({*TEST, *NOTEBOOKS, 'twine'}),
  },
  classifiers=[
    'Development Status :: 4 - Beta',
    'Intended Audience :: Developers',
    'Intended Audience :: Science/Research',
    'Operating System :: OS Independent',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3 :: Only',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Topic :: Scientific/Engineering :: Artificial Intelligence',
    'Topic :: Scientific/Engineering :: Mathematics',
    'Typing :: Typed',
  ],
  keywords=[
    'discrete latent variables',
    'gradient estimation',
    'Rao-Blackwellization',
    'REINFORCE',
    'tensorflow probability',
    'variance reduction',
  ],
)
