"""`eagc selftest`: passes here, and fails on an implementation that is wrong in any way it looks for."""

import json
import re
from dataclasses import replace

import pytest
import torch

from eagc_ops import kernels
from eagc_ops.kernels import Coordination, Inputs, torch_path
from eagc_ops.selftest import command as selftest_command
from eagc_ops.selftest import scenarios, selftest

CPU = torch.device("cpu")
coordinate, labelled_energy = torch_path.compute, torch_path.labelled_energy


@pytest.fixture
def results(monkeypatch):
    """Runs the self-test; the results of the torch path, those in doubt about labelled rows (one row,
    labelled or not) left out.
    """
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((1, 1), (7, 33), (48, 64)))

    def run(function=coordinate, energy=labelled_energy):
        monkeypatch.setattr(torch_path, "compute", function)
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
        ({"function": changed(basis=None)}, lambda r: r.form == "basis"),
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
        "basis",
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
        == 14
    )
    assert out.endswith(" passed, 14 failed\n")


def test_a_failed_scenario_fails_the_command(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((7, 33),))
    monkeypatch.setitem(scenarios.SCENARIOS, "sliced mask", (lambda device: "bits differ on streams", False))
    assert selftest_command.main(["--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "\nsliced mask: FAIL: bits differ on streams\n" in out and out.endswith(" passed, 1 failed\n")


def test_on_a_cpu_it_says_what_was_not_run_and_why(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((7, 33),))
    assert selftest_command.main(["--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "\nsliced mask: ok\n" in out
    assert "\nTriton kernels: not run, z is on the CPU, where only Triton's interpreter runs" in out
    for name in ("two streams", "graph capture and replay", "torch.compile reduce-overhead"):
        assert f"\n{name}: not run, needs a GPU, the device is cpu\n" in out


def test_json_holds_all_that_a_report_needs(capsys, monkeypatch):
    monkeypatch.setattr(selftest, "SMALL_SHAPES", ((7, 33),))
    assert selftest_command.main(["--device", "cpu", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] and report["arguments"] == ["--device", "cpu", "--json"]
    assert report["failures"] == 0 and {result["verdict"] for result in report["results"]} == {"ok"}
    assert report["scenarios"]["sliced mask"] == "ok" and report["scenarios"]["two streams"] == "not run"
    assert set(report["not_run"]) == {"Triton kernels", *scenarios.SCENARIOS} - {"sliced mask"}


def test_a_quick_run_on_a_gpu_compiles_a_quarter_of_the_kernels_of_a_full_one(monkeypatch):
    """Cases that differ in the labelled share only have the same kernel. Quick runs keep every dtype,
    precision and form, rows that are no multiple of 4, and rows beyond those that the kernel looks through.
    """
    monkeypatch.setattr(kernels, "why_not_triton", lambda device, dtype: dtype == torch.float64)
    gpu = torch.device("cuda")
    quick, full, races = (
        {replace(case, labelled=0.5) for case in selftest.cases(gpu, **options) if case.impl == "triton"}
        for options in ({}, {"full": True}, {"races": True})
    )
    assert len(quick) <= 31 < 93 <= len(full)
    for kind in ("dtype", "precision", "form"):
        assert {getattr(case, kind) for case in quick} == {getattr(case, kind) for case in full}
    for cases in (quick, full):
        assert any(case.rows % 4 for case in cases if case.dim == 768)
        assert any(case.rows > 4096 for case in cases)
    assert len(races) == 6 and {case.dtype for case in races} == {case.dtype for case in full}
    assert all(case.impl == "triton" for case in selftest.cases(gpu, races=True))


def test_torchs_tf32_does_not_reach_the_comparisons():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with selftest.exact_products():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


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

    right = launch.run

    def wrong(g, inputs, *rest, **named):
        return right(g, inputs._replace(**{dropped: None}), *rest, **named)

    monkeypatch.setattr(launch, "run", wrong)
    forms = ("default", "scaled") if dropped == "z_ref" else ("scaled",)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for form in forms:
            assert (
                selftest.check(selftest.Case("triton", "auto", form, dtype, 7, 33, 0.5), CPU, 1).verdict
                == "FAIL: error"
            )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "cuda:99"], "--device cuda:99 cannot be used: "),
        (["--repeats", "0"], "--repeats: must be a whole number >= 1, got 0"),
        (["--fast"], "unknown option --fast"),
        (["--quick", "--full"], "--full: not allowed with argument --quick"),
        (["--device", "cpu", "--races"], "--races: Triton's sanitizer needs an NVIDIA GPU"),
    ],
)
def test_refuses_bad_options(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit:
        selftest_command.main(arguments)
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"eagc selftest: {words}")
