"""Packaging of EAGC-ops.

The folders of the repository are rooms of one import package: `kernels/` is imported as `eagc_ops.kernels`, `training/` as
`eagc_ops.training`, `bench/` as `eagc_ops.bench`. A top-level package named `kernels` or `training` would collide with
other people's packages in site-packages.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOMS = {
    "eagc_ops": "eagc_ops",
    "eagc_ops.kernels": "kernels",
    "eagc_ops.training": "training",
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

# A reason stands beside every bound; the exact versions the tests ran with are in constraints.txt.
TORCH = "torch>=2.8"  # the release that belongs to triton 3.4; also torch.accelerator. Tested: the version in constraints.txt
TRITON = "triton>=3.4; platform_system == 'Linux'"  # triton.knobs, by which the gate reads ptxas's log; elsewhere the torch path serves
NUMPY = "numpy>=1.26"  # first release built for python 3.12
SCIPY = "scipy>=1.11"  # linear_sum_assignment, loadmat; 1.11 is the first for python 3.12
TIMM = "timm>=1.0.9"  # vit checkpoint_filter_fn for DINOv2 with registers
TORCHVISION = "torchvision>=0.23"  # the release that belongs to torch 2.8
ACCELERATE = "accelerate>=1.0"  # stable Accelerator API
SCIKIT_LEARN = "scikit-learn>=1.3"  # KMeans n_init='auto' settled; bundled digits
MATPLOTLIB = "matplotlib>=3.8"  # numpy 2 support
TQDM = "tqdm>=4.66"  # settings from TQDM_* variables
TENSORBOARD = "tensorboard>=2.15"  # protobuf 4 and later
SAFETENSORS = "safetensors>=0.4"  # safe_open with metadata, refuses malformed headers
PYDANTIC = "pydantic>=2.8"  # settings and their ranges; 2.8 is the first for python 3.13
PYYAML = "pyyaml>=6.0"  # safe_load of user split files
PYTEST = "pytest>=8.0"  # pythonpath, importlib import mode without __init__ files
PYTEST_BENCHMARK = "pytest-benchmark>=4.0"  # works with pytest 8
PYTEST_XDIST = "pytest-xdist>=3.5"  # the suite on two cores
RUFF = "ruff>=0.6"  # formats Markdown code blocks in preview and later; the format of the tested version is the one checked

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
    PYDANTIC,
    PYYAML,
]
BENCH = [*TRAIN, PYTEST, PYTEST_BENCHMARK]  # the overhead table trains
TEST = [*TRAIN, PYTEST, PYTEST_BENCHMARK, PYTEST_XDIST, RUFF]

setup(
    name="eagc-ops",
    version=VERSION,
    description="Energy-Aware Gradient Coordinator for Generalized Category Discovery: a PyTorch operator with a fused Triton kernel",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",  # X | Y annotations evaluated at run time, sys.orig_argv
    package_dir=ROOMS,
    packages=PACKAGES,
    package_data={
        "eagc_ops": ["py.typed"],
        "eagc_ops.training.report": ["templates/*.j2"],
        "eagc_ops.training.paper": ["templates/*.j2"],
    },
    install_requires=[TORCH, TRITON, NUMPY],
    extras_require={"train": TRAIN, "bench": BENCH, "test": TEST, "all": sorted({*TRAIN, *BENCH, *TEST})},
    entry_points={"console_scripts": ["eagc=eagc_ops.cli:main"]},
)
