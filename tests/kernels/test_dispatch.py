"""The choice of an implementation: what impl="auto" does where the kernel cannot be launched."""

import warnings

import pytest
import torch
from operator_cases import SETTINGS, assert_close_to_oracle, make_case

from eagc_ops import EAGC, Subspace, kernels
from eagc_ops.kernels import Execution, dispatch, formulas
from eagc_ops.kernels.tiles import FAMILY, family, pick

AUTO = Execution("auto")


class Broken:
    """Stands for the module `launch` on a GPU that refuses the kernel."""

    INTERPRETED = True

    def __init__(self, error):
        self.error, self.calls = error, 0

    def run(self, *args, **options):
        self.calls += 1
        raise self.error

    run_labelled_energy = run


@pytest.fixture
def broken(monkeypatch):
    """`broken(error)` makes impl="auto" choose Triton on this CPU, and every launch raise the error."""
    monkeypatch.setattr(dispatch, "_unserved", set())

    def install(error):
        launch = Broken(error)
        monkeypatch.setattr(dispatch, "_triton", lambda: launch)
        choose = dispatch.implementation
        monkeypatch.setattr(
            dispatch,
            "implementation",
            lambda execution, *of: "triton" if execution.impl == "auto" else choose(execution, *of),
        )
        return launch

    return install


REFUSALS = [
    RuntimeError("Triton Error [CUDA]: invalid argument"),
    RuntimeError("Failed to find C compiler. Please specify via CC environment variable"),
    ImportError("libtriton.so: undefined symbol"),
    ValueError("type fp8e4nv not supported in this architecture"),
    AssertionError("ptxas\nfailed"),
]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_auto_falls_back_to_torch_with_one_warning(broken, error):
    launch, case = broken(error), make_case()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = kernels.coordinate(case.g, case.inputs, SETTINGS, AUTO)
        again = kernels.coordinate(case.g, case.inputs, SETTINGS, AUTO)
        sums, _ = kernels.labelled_energy(case.inputs, 0.9, AUTO, update=False)
    (message,) = [str(w.message) for w in caught if w.category is UserWarning]
    assert "cannot be launched for torch.float32 features with D=24 on cpu" in message
    assert " ".join(str(error).split()) in message and "\n" not in message
    assert launch.calls == 1, "a launch that failed is tried again"
    assert_close_to_oracle(out, case)
    assert torch.equal(out, again)
    exact = formulas.labelled_energy(case.inputs.widened(torch.float64))
    torch.testing.assert_close(sums.double(), exact, rtol=1e-6, atol=0)


def test_a_refused_update_of_the_running_energy_reference_is_made_once(broken):
    case = make_case()
    module, plain = (
        EAGC(Subspace(case.matrix, case.energy_ref), energy_momentum=0.5, impl=impl)
        for impl in ("auto", "torch")
    )
    plain(case.z, case.z_ref, case.mask)
    broken(RuntimeError("out of resource: shared memory"))
    with pytest.warns(UserWarning, match="out of resource: shared memory"):
        module(case.z, case.z_ref, case.mask)
    assert torch.equal(module.energy_ref, plain.energy_ref)


def test_another_d_is_tried_again_and_warned_about_apart(broken):
    launch = broken(RuntimeError("out of resource"))
    for dim in (24, 16, 24):
        case = make_case(dim=dim)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernels.coordinate(case.g, case.inputs, SETTINGS, AUTO)
    assert launch.calls == 2


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_full_memory_is_not_hidden(broken, monkeypatch, impl):
    broken(torch.OutOfMemoryError("CUDA out of memory"))
    monkeypatch.setattr(dispatch, "implementation", lambda *of: "triton")
    case = make_case()
    with pytest.raises(torch.OutOfMemoryError):
        kernels.coordinate(case.g, case.inputs, SETTINGS, Execution(impl))


def test_triton_asked_for_by_name_raises(broken, monkeypatch):
    broken(RuntimeError("out of resource"))
    monkeypatch.setattr(dispatch, "implementation", lambda *of: "triton")
    case = make_case()
    with pytest.raises(RuntimeError, match="out of resource"):
        kernels.coordinate(case.g, case.inputs, SETTINGS, Execution("triton"))


@pytest.mark.parametrize(
    ("arch", "like"),
    [
        ("sm_87", "sm_80"),
        ("sm_88", "sm_86"),
        ("sm_101", "sm_100"),
        ("sm_103", "sm_100"),
        ("sm_110", "sm_100"),
        ("sm_121", "sm_120"),
        ("gfx950", "gfx942"),
        ("gfx90a", "gfx942"),
    ],
)
def test_a_relative_of_a_known_architecture_gets_its_tiles(arch, like):
    assert family(arch) == FAMILY[like]
    for rows, dim in ((256, 768), (4096, 1024), (65536, 4096)):
        for dtype in (torch.float32, torch.bfloat16):
            assert pick(arch, rows, dim, dtype) == pick(like, rows, dim, dtype)


def test_an_unknown_generation_gets_tiles_that_fit_anywhere():
    assert family("sm_200") == family("interpreter") == "narrow"
