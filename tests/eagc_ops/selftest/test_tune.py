"""`eagc tune`: the search, the gate, and the file that launches read. The timers are made up: no GPU."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from eagc_ops.selftest import tune, tune_command

pytest.importorskip("triton", reason="Triton has no wheels for this platform")

from eagc_ops.kernels import DTYPES, Precision, aot, launch, tuned
from eagc_ops.kernels.tiles import TABLE, Tile, pick

CPU = torch.device("cpu")
SHAPE = tune.Shape(20, 32, "fp32")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned.forget()
    yield
    tuned.forget()


def few(shape, arch, tiles):
    return tiles[:4]


def test_without_a_gpu_it_says_so_in_one_line(capsys):
    with pytest.raises(SystemExit) as exit:
        tune_command.main([])
    assert exit.value.code == 2
    assert capsys.readouterr().err == "eagc tune: needs a GPU, and torch sees none on this machine\n"


def test_the_command_offers_every_precision_and_dtype():
    assert get_args(Precision) == tune_command.PRECISIONS
    assert tuple(DTYPES) == tune_command.DTYPES


@pytest.mark.parametrize(
    "options",
    [
        *(["--rows", "0"], ["--dtype", "fp8"], ["--precision", "low"], ["--precision", "tf32"], ["--fast"]),
        *(["--device", "cpu"], ["--device", "toaster"]),
    ],
    ids=" ".join,
)
def test_refuses_bad_options(options, capsys):
    with pytest.raises(SystemExit) as exit:
        tune_command.main(options)
    assert exit.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_candidates_go_beyond_the_table_and_stay_within_the_shape():
    paper = set(tune.candidates(tune.Shape(256, 768, "bf16")))
    assert {entry.tile("half") for entry in TABLE if entry.family == "wide"} <= paper
    assert len(paper) > 100
    tiles = list(tune.candidates(tune.Shape(20, 40, "fp32")))
    assert tiles and all(tile.block_m < 40 and max(tile[1:3]) < 80 for tile in tiles)


@pytest.mark.interpreter
def test_the_fastest_tile_is_kept_and_launched(monkeypatch):
    """The timer says that the third tile is fastest; the file says so, and a launch of that shape uses it."""
    times = iter([4.0, 3.0, 1.0, 2.0])
    timed = []

    def timer(run):
        timed.append(run())
        return next(times)

    found = tune.search(SHAPE, CPU, timer, few)
    tiles = list(found.seconds)
    assert len(timed) == 4 and found.best == tiles[2]
    assert found.table == tiles[0] == pick("interpreter", 20, 32, torch.float32)
    path = Path(tune.keep(SHAPE, CPU, found))
    (entry,) = json.loads(path.read_text()).values()
    assert Tile(*(entry[field] for field in Tile._fields)) == found.best
    assert (entry["seconds"], entry["table_seconds"], entry["rows"]) == (1.0, 4.0, 20)
    assert launch._tile(torch.empty(20, 32), "auto", None, False, "interpreter") == found.best != found.table
    # A second shape joins the first.
    tune.keep(tune.Shape(300, 32, "fp32"), CPU, found)
    assert len(json.loads(path.read_text())) == 2


@pytest.mark.interpreter
def test_a_wrong_or_failing_tile_is_never_chosen(monkeypatch):
    right = launch.run
    table = pick("interpreter", 20, 32, torch.float32)
    others = [tile for tile in tune.candidates(SHAPE) if tile != table][:2]

    def faulty(g, inputs, settings, precision, tile):
        if tile == others[0]:
            raise RuntimeError("out of resource: shared memory")
        out = right(g, inputs, settings, precision, tile)
        if tile == others[1]:
            out.gradient[3, 3] += 0.1
        return out

    monkeypatch.setattr(launch, "run", faulty)
    found = tune.search(SHAPE, CPU, lambda run: 1.0, lambda *_: [table, *others])
    assert list(found.seconds) == [table]
    with pytest.raises(ValueError, match="no tile gives the right result"):
        tune.search(SHAPE, CPU, lambda run: 1.0, lambda *_: others)


@pytest.mark.interpreter
def test_a_corrupt_file_is_replaced():
    tuned.path().parent.mkdir()
    tuned.path().write_text('{"a call": 3}')
    found = tune.Found({Tile(16, 32, 32, 4, 2): 1.0}, Tile(16, 64, 32, 4, 4))
    tune.keep(SHAPE, CPU, found)
    (tile,) = tuned.read().values()
    assert tile == found.best


def test_the_gate_judges_both_kernels_and_a_relative_of_the_gpu(monkeypatch):
    """A tile passes if neither kernel has a problem. The compiler is left out here."""
    compiled = []
    tiles = [Tile(16, 64, 64, 4, stages) for stages in (2, 3, 4)]

    def in_processes(cases, workers, start_method):
        for case in cases:
            compiled.append(case)
            refused = case.tile == tiles[2] or (case.tile, case.kernel) == (tiles[1], "labelled_energy")
            yield SimpleNamespace(problems=("spills",) if refused else ())

    monkeypatch.setattr(aot, "in_processes", in_processes)
    assert tune.pass_the_gate(tune.Shape(256, 768, "bf16"), "sm_103", tiles) == tiles[:1]
    assert {case.arch for case in compiled} == {"sm_100"} and len(compiled) == 6
    assert {case.kernel for case in compiled} == set(aot.KERNELS)


@pytest.mark.parametrize(
    ("arch", "known"),
    [
        *(("sm_80", "sm_80"), ("sm_87", "sm_80"), ("sm_89", "sm_86"), ("sm_103", "sm_100")),
        *(("sm_110", "sm_100"), ("sm_121", "sm_120"), ("gfx950", "gfx942"), ("gfx90a", "gfx942")),
    ],
)
def test_an_unknown_gpu_is_judged_as_its_relative(arch, known):
    assert tune.relative(arch, aot.LIMITS) == known
