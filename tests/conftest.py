"""Two runs make up the suite: one with TRITON_INTERPRET=1 that runs what needs or takes the Triton kernels,
then the plain one.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import faults
import pytest

import eagc_ops.kernels
from eagc_ops.app import interrupts

# The environment may be shared by several clones, and in the root of a clone the folder `eagc_ops` is found
# without its other rooms: without a word, half of the tests would be of another clone's code.
HERE = Path(__file__).resolve().parents[1]
if not Path(eagc_ops.kernels.__file__).resolve().is_relative_to(HERE):
    pytest.exit(
        f"these tests are in {HERE}, but eagc_ops.kernels is {eagc_ops.kernels.__file__}: install this clone "
        "(make install), or set PYTHONSAFEPATH=1 with PYTHONPATH=build/tree (make tree)",
        returncode=2,
    )

# Some virtual machines announce AMX and do not permit it: oneDNN's half products then end in "could not
# create a primitive".
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # read when torch first multiplies

# No test asks the Hugging Face hub, or finds what this machine has of it: read when its client is imported.
os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=os.path.join(tempfile.gettempdir(), "eagc-ops-no-hub"))

# A shell starts what runs in its background with Ctrl-C ignored, and every child inherits that: the tests
# that press it would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(config, items):
    """`interpreter` tests belong to the first run; tests with the `impl` fixture run in both, each with its
    own providers.
    """
    kept, dropped = [], []
    for item in items:
        faults.note_kind(item)
        own = item.get_closest_marker("interpreter") is not None
        both = "impl" in getattr(item, "fixturenames", ())
        (kept if both or own == INTERPRETED else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_terminal_summary(terminalreporter):
    reports = [report for group in terminalreporter.stats.values() for report in group]
    for line in faults.summary(report for report in reports if isinstance(report, pytest.TestReport)):
        terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def same_answer_to_ctrl_c():
    """A command that Ctrl-C ended keeps its handlers, because its process is about to end: a test goes on."""
    numbers = interrupts.SIGNALS
    handlers, hook = {number: signal.getsignal(number) for number in numbers}, sys.unraisablehook
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    sys.unraisablehook = hook


@pytest.fixture(params=["triton"] if INTERPRETED else ["torch", "fp64"])
def impl(request) -> str:
    return request.param


@pytest.fixture
def poisoned_memory():
    """Memory that nobody wrote holds NaN, so an unwritten element shows."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Settings that name a small image folder, its split and weights; see `small_runs.write_files`."""
    import small_runs  # it needs the packages of training, which the operator's tests do without

    return small_runs.write_files(tmp_path_factory.mktemp("images"))
