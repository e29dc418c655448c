"""`eagc selftest`: passes here, and fails on an implementation that is wrong in any way it looks for."""

import re

import pytest
import torch

from eagc_ops import kernels, selftest, selftest_command
from eagc_ops.kernels import Coordination, Inputs, torch_path

CPU = torch.device("cpu")
coordinate, labelled_energy = torch_path.coordinate, torch_path.labelled_energy


@pytest.fixture
def results(monkeypatch):
    """Runs the self-test; the results of the torch path, those in doubt about labelled rows (one row,
    labelled or not) left out.
    """
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((1, 1), (7, 33), (48, 64)))

    def run(function=coordinate, energy=labelled_energy):
        monkeypatch.setattr(torch_path, "coordinate", function)
        monkeypatch.setattr(torch_path, "labelled_energy", energy)
        found = [
            r for r in selftest.run(CPU, 2) if r.impl == "torch" and not (r.rows == 1 and r.labelled == 0.5)
        ]
        assert len({r.dtype for r in found}) == 4
        return found

    return run


def changed(**different):
    """The torch path with some inputs or settings replaced."""

    def wrong(g, inputs, settings):
        inputs = inputs._replace(**{name: x for name, x in different.items() if name in Inputs._fields})
        settings = settings._replace(
            **{name: x for name, x in different.items() if name in Coordination._fields}
        )
        return coordinate(g, inputs, settings)

    return wrong


def no_energies(inputs):
    return labelled_energy(inputs) * torch.tensor([0, 1])


def anchored(r):
    return r.labelled > 0 and r.form != "no anchor"


def projected(r):
    return r.labelled < 1


@pytest.mark.parametrize(
    ("wrong", "affected"),
    [
        ({"function": changed(z_ref=None)}, anchored),
        ({"function": changed(lambda_a=0.0)}, anchored),
        ({"function": changed(lambda_p=0.0)}, projected),
        ({"function": changed(lambda_p=0.55)}, projected),
        ({"function": changed(tau="uniform")}, lambda r: projected(r) and r.form != "uniform"),
        ({"function": changed(tau="energy")}, lambda r: r.form == "uniform"),
        ({"function": changed(scale=None)}, lambda r: r.form == "scaled"),
        ({"function": changed(labelled=None)}, lambda r: r.form == "scaled"),
        ({"function": changed(anchor="mean")}, lambda r: r.form == "sum"),
        (
            {"function": changed(anchor="sum")},
            lambda r: anchored(r) and r.form != "sum" and (r.rows, r.dim) != (1, 1),
        ),
        ({"energy": no_energies}, lambda r: r.labelled > 0),
    ],
    ids=[
        "no z_ref",
        "no lambda_a",
        "no lambda_p",
        "lambda_p",
        "tau=1",
        "tau",
        "scale",
        "count",
        "mean",
        "sum",
        "energies",
    ],
)
def test_a_wrong_implementation_fails_in_every_case_it_affects_and_in_no_other(results, wrong, affected):
    found = results(**wrong)
    assert any(map(affected, found))
    for result in found:
        assert result.verdict == ("FAIL: error" if affected(result) else "ok"), result


def test_an_update_of_the_running_energy_reference_that_is_wrong_fails(results, monkeypatch):
    updated = kernels.formulas.updated_number
    monkeypatch.setattr(
        kernels.formulas,
        "updated_number",
        lambda before, total, count, momentum: updated(before, total, count, 0.95),
    )
    assert all(r.verdict == ("FAIL: error" if r.labelled > 0 else "ok") for r in results())


def test_bits_that_differ_fail(results):
    def racy(*args):
        out = coordinate(*args)
        return out * (1 + 1e-7 * torch.rand((), dtype=torch.float64)).to(out.dtype)

    assert all(r.verdict == "FAIL: bits differ" for r in results(racy) if r.dtype == torch.float64)


def test_what_raises_is_a_failed_case_and_leaves_torch_as_it_was(results, capsys):
    def broken(g, *args):
        if g.dtype == torch.bfloat16:
            raise RuntimeError("out of resource: shared memory\nRequired: 300000")
        return coordinate(g, *args)

    for enabled in (False, True):
        torch.use_deterministic_algorithms(enabled, warn_only=enabled)
        try:
            found = results(broken)
            after = (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
        finally:
            torch.use_deterministic_algorithms(False)
        assert after == (enabled, enabled)
        for r in found:
            assert r.verdict == (
                "FAIL: RuntimeError: out of resource: shared memory" if r.dtype == torch.bfloat16 else "ok"
            )
    assert selftest_command.main(["--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert (
        len(
            re.findall(
                r"^torch .*bfloat16 .*FAIL: RuntimeError: out of resource: shared memory$", out, re.MULTILINE
            )
        )
        == 13
    )
    assert out.endswith(" passed, 13 failed\n")


def test_passes_here(results, capsys):
    assert all(r.verdict == "ok" for r in results())
    assert selftest_command.main(["--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^\d+ passed, 0 failed$", out, re.MULTILINE)
    assert all(re.search(rf"^torch +auto +{form} ", out, re.MULTILINE) for form in selftest.FORMS)


@pytest.mark.interpreter
def test_the_triton_kernels_pass(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((7, 33),))
    assert selftest_command.main(["--device", "cpu", "--repeats", "2"]) == 0
    assert "triton" in capsys.readouterr().out


@pytest.mark.interpreter
@pytest.mark.parametrize("dropped", ["z_ref", "scale", "labelled"])
def test_a_wrong_triton_launch_fails(monkeypatch, dropped):
    from eagc_ops.kernels import launch

    right = launch.coordinate

    def wrong(g, inputs, *rest):
        return right(g, inputs._replace(**{dropped: None}), *rest)

    monkeypatch.setattr(launch, "coordinate", wrong)
    forms = ("default", "scaled") if dropped == "z_ref" else ("scaled",)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for form in forms:
            assert (
                selftest.check(selftest.Case("triton", "auto", form, dtype, 7, 33, 0.5), CPU, 1).verdict
                == "FAIL: error"
            )


@pytest.mark.parametrize("arguments", [["--device", "cuda:99"], ["--repeats", "0"], ["--fast"]])
def test_refuses_bad_options(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        selftest_command.main(arguments)
    assert exit.value.code == 2
