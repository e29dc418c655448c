"""`eagc bench`: refusals before anything is measured, arguments of the measuring, and results saved first."""

from types import SimpleNamespace

import pytest
import triton

from eagc_ops import kernels
from eagc_ops.app.table import Table
from eagc_ops.bench import (
    commands,
    conceptor,
    estimate,
    loader,
    operator,
    overhead,
    pictures,
    roofline,
    scale,
    tables,
    throughput,
)
from eagc_ops.bench.commands import main
from eagc_ops.bench.commands.options import device
from eagc_ops.bench.commands.overhead import BACKBONES
from eagc_ops.bench.commands.throughput import DTYPES
from eagc_ops.bench.results_file import load, save
from eagc_ops.kernels import aot
from eagc_ops.training import data as training_data
from eagc_ops.training.data import gcd

ROWS = [{"kind": "measured", "a": 1}]
RESULTS = dict.fromkeys(("steps", "evaluation", "reference", "epochs", "conceptor", "paper"), ROWS) | {
    "bars": [],  # they are promised for one setting only
    "settings": {"backbone": "vit", "image_size": 224, "rows": 16, "rounds": 9},
}


@pytest.fixture(autouse=True)
def this_process(monkeypatch):
    """A pinned process would be a different one."""
    monkeypatch.setattr(commands, "pin_process", lambda: None)


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured: the calls of `overhead` and `throughput_rows` are kept, tables are of any rows."""
    calls = []
    monkeypatch.setattr(overhead, "overhead", lambda *arguments: calls.append(arguments) or RESULTS)
    monkeypatch.setattr(throughput, "throughput_rows", lambda *arguments: calls.append(arguments) or ROWS)
    for name in (
        "throughput",
        "steps",
        "memory",
        "evaluation",
        "reference_model",
        "epochs",
        "solve",
        "paper",
    ):
        for home in (tables, tables.calls, tables.training_step):  # where the commands and the tables look
            if hasattr(home, name):
                monkeypatch.setattr(home, name, Table.of)
    return calls


def refused(capsys, *argv):
    """The one line of a refusal."""
    try:
        code = main([*map(str, argv)])
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith(f"eagc bench {argv[0]}: ") and err.count("\n") == 1, err
    return err


MULTIPLE_OF_4 = "must be a positive multiple of 4, got"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("overhead --rounds 0", "--rounds: must be a whole number >= 1, got 0"),
        ("overhead --rounds -1", "--rounds: must be a whole number >= 1, got -1"),
        ("overhead --rounds 2.5", "--rounds: must be a whole number >= 1, got 2.5"),
        ("overhead --rows 6", f"{MULTIPLE_OF_4} 6 (two views of every image, half the images labelled)"),
        ("overhead --rows 0", f"--rows: {MULTIPLE_OF_4} 0"),
        ("overhead --root data", "--root data needs --dataset"),
        ("overhead --split-file split.json", "--split-file split.json needs --dataset"),
        ("overhead --picture x.foo", "--picture: must be a file name that ends in .svg or .png, got x.foo"),
        ("overhead --row 8", "unknown option --row; did you mean --rows?"),
        ("roofline --picture x", "--picture: must be a file name that ends in .svg or .png, got x"),
        ("roofline --measured x", "--measured: x is not a results file of `eagc bench`"),
        ("throughput --rows 16 1", "--rows: must be a whole number >= 4, got 1"),
        ("throughput --dims 0", "--dims: must be a whole number >= 4, got 0"),
        ("throughput --budget 0", "--budget: must be a positive number of seconds, got 0"),
        ("throughput --budget nan", "--budget: must be a positive number of seconds, got nan"),
        ("throughput --budget much", "--budget: must be a positive number of seconds, got much"),
        ("aot --jobs 0", "--jobs: must be a whole number >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(argv, words, capsys, monkeypatch):
    monkeypatch.setattr(commands, "make_folders", lambda _: pytest.fail("accepted"))
    assert words in refused(capsys, *argv.split())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--dataset cub", "--root is missing: CUB-200-2011 needs a folder with images/"),
        ("--dataset cub --root nowhere", "--root nowhere is not a folder: it does not exist; CUB"),
        ("--dataset birds --root nowhere", "--dataset: invalid choice: 'birds' (choose from "),
        ("--dataset digits --root nowhere", "have no root"),
        (
            "--dataset digits --rows 4000",
            "450 labelled and 1347 unlabelled images; 8 of each are needed, and 2000 in all for --rows 4000",
        ),
    ],
)
def test_data_that_will_not_do_is_refused(argv, words, capsys, measured):
    assert words in refused(capsys, "overhead", *argv.split())
    assert measured == []


@pytest.mark.parametrize(
    ("argv", "rows", "rounds", "images"),
    [("", 16, 9, 16), ("--quick", 16, 3, 8), ("--quick --rounds 1 --rows 4", 4, 1, 8)],
)
def test_overhead_gets_the_options(argv, rows, rounds, images, measured):
    assert main(["overhead", *argv.split()]) == 0
    assert measured == [(BACKBONES[0], rows, device(), rounds, images, None, 224, "no")]


def test_overhead_gets_the_data_set_which_is_opened_once(measured, monkeypatch):
    opened, open_data = [], training_data.open_data

    def counted(*arguments, **options):
        opened.append(open_data(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(training_data, "open_data", counted)
    assert main(["overhead", "--dataset", "digits"]) == 0  # needs no root
    ((*_, data, image_size, _),) = measured
    assert opened == [data] and data.name == "digits" and data.image_size == image_size == 224


def test_overhead_reads_the_data_set_once_up_to_the_measuring(monkeypatch):
    """From the command line to the batch of a step; the rest of `overhead` gets that batch and the images."""
    read, read_images = [], gcd.read_images

    def counted(*which, **more):
        read.append(which)
        return read_images(*which, **more)

    monkeypatch.setattr(gcd, "read_images", counted)
    monkeypatch.setattr(overhead, "make_setting", stop)
    with pytest.raises(Stop):
        main(["overhead", "--dataset", "digits"])
    assert read == [("digits", None)]


def test_throughput_gets_the_options(measured):
    argv = "throughput --quick --rows 8 4 --dims 16 --dtypes fp32 --budget 0.5"
    assert main(argv.split()) == 0
    assert measured == [([(8, 16, "fp32"), (4, 16, "fp32")], device(), 0.5)]


def test_a_bug_in_the_measuring_is_not_taken_for_a_wrong_option(monkeypatch):
    def broken(*_, **__):
        raise ValueError("shapes differ")

    monkeypatch.setattr(overhead, "overhead", broken)
    with pytest.raises(ValueError, match="shapes differ"):
        main(["overhead"])


NEEDED = ".".join(map(str, aot.LOWEST_TRITON))


def test_the_gate_refuses_an_older_triton_before_it_compiles(monkeypatch, capsys):
    monkeypatch.setattr(triton, "__version__", "3.4.0")
    monkeypatch.setattr(aot, "ProcessPoolExecutor", None)
    line = refused(capsys, "aot")
    assert f"needs Triton {NEEDED} or later" in line and "this is Triton 3.4.0" in line


@pytest.mark.parametrize(
    ("place", "name", "replacement", "words"),
    [
        (triton, "knobs", None, "AttributeError: module 'triton' has no attribute 'knobs'"),
        (triton.knobs, "nvidia", None, "has no attribute 'nvidia'"),
        (triton.compiler, "ASTSource", None, "has no attribute 'ASTSource'"),
        (triton.compiler, "ASTSource", lambda kernel, signature: None, "TypeError"),
        (triton.backends.compiler, "GPUTarget", None, "has no attribute 'GPUTarget'"),
        (aot, "compiled_kernel", lambda case: SimpleNamespace(), "has no attribute 'metadata'"),
        (
            aot,
            "compiled_kernel",
            lambda case: SimpleNamespace(metadata=SimpleNamespace(shared=0), asm={}),
            "KeyError: 'ptx'",
        ),
        (
            aot,
            "compiled_kernel",
            lambda case: SimpleNamespace(metadata=SimpleNamespace(shared=0), asm={"ptx": ""}),
            "its compiler's report has no 'Used",
        ),
    ],
    ids=[
        "knobs",
        "knobs of NVIDIA",
        "source",
        "form of a source",
        "target",
        "metadata",
        "assembly",
        "report",
    ],
)
def test_the_gate_refuses_a_triton_with_other_internals(place, name, replacement, words, monkeypatch, capsys):
    """In one line, from a real process of the pool; a newer Triton may lack any of these."""
    if replacement:
        monkeypatch.setattr(place, name, replacement)
    else:
        monkeypatch.delattr(place, name)
    first = next(aot.cases())
    monkeypatch.setattr(aot, "cases", lambda **_: iter([first]))
    line = refused(capsys, "aot", "--jobs", 1)
    assert f"needs Triton {NEEDED} or later" in line and words in line


def test_a_roofline_without_the_gate_has_measured_points_only(monkeypatch, capsys, tmp_path):
    drawn = []
    monkeypatch.setattr(triton, "__version__", "3.4.0")
    monkeypatch.setattr(throughput, "throughput_rows", lambda *_: ROWS)
    monkeypatch.setattr(roofline, "measured_roofs", lambda _: {"flop_per_s": 1e9, "bytes_per_s": 1e9})
    monkeypatch.setattr(pictures, "draw_roofline", lambda *arguments: drawn.append(arguments[2:4]))
    assert main(["roofline", "--picture", str(tmp_path / "r.svg")]) == 0
    line = capsys.readouterr().err
    assert line.startswith("no modelled points: ") and f"needs Triton {NEEDED}" in line
    assert line.count("\n") == 1 and drawn == [(ROWS, [])]


class Stop(Exception):
    pass


def stop(*_, **__):
    raise Stop


COMMANDS = {  # stand-ins for the measuring, and the function that comes after it
    "operator": (
        {(operator, "operator_rows"): ROWS, (operator, "solve_rows"): ROWS},
        (tables, "operator"),
    ),
    "throughput": ({(throughput, "throughput_rows"): ROWS}, (tables, "throughput")),
    "roofline": (
        {
            (throughput, "throughput_rows"): ROWS,
            (roofline, "measured_roofs"): {},
            (roofline, "modelled_rows"): [],
        },
        (pictures, "draw_roofline"),
    ),
    "overhead": ({(overhead, "overhead"): RESULTS}, (pictures, "draw_overhead")),
    "loader": (
        {(loader, "loader_tables"): {"settings": {}, "loader": ROWS, "cache": {}, "bars": ROWS}},
        (tables, "loader_note"),
    ),
    "conceptor": (
        {(conceptor, "conceptor_tables"): {"settings": {}, "times": ROWS, "quality": ROWS}},
        (tables, "conceptor_times"),
    ),
    "estimate": ({(estimate, "estimate_rows"): ROWS}, (tables, "estimate")),
    "scale": ({(scale, "scale_rows"): ROWS, (scale, "kmeans_rows"): ROWS}, (tables, "scale")),
    "aot": ({(aot, "cases"): [], (aot, "compile_all"): []}, (tables, "aot")),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_results_are_saved_whatever_happens_to_tables_and_pictures(name, tmp_path, monkeypatch):
    stubs, following = COMMANDS[name]
    for (module, function), result in stubs.items():
        monkeypatch.setattr(module, function, lambda *_, result=result, **__: result)
    monkeypatch.setattr(*following, stop)
    picture = ["--picture", str(tmp_path / "p.svg")] if name in ("roofline", "overhead") else []
    with pytest.raises(Stop):
        main([name, "-o", str(tmp_path / "new" / "folder" / "r.json"), *picture])
    record = load(tmp_path / "new" / "folder" / "r.json")
    assert record["benchmark"] == name
    key = {"roofline": "measured", "conceptor": "times", "aot": "cases", "overhead": "steps"}.get(name, name)
    assert record[key] == ([] if name == "aot" else ROWS)


def test_kept_points_are_not_measured_again(monkeypatch, tmp_path, capsys):
    """The header is that of the measured points; what modelled the others stands beside them."""
    roofs = {"flop_per_s": 8e10, "bytes_per_s": 1e10}
    before = {
        "date": "2026-01-01",
        "machine": {"cpu": "some CPU", "gpus": []},
        "versions": {},
        "commit": "abc",
    }
    save(tmp_path / "a.json", "roofline", {**before, "roofs": roofs, "measured": ROWS})
    for function in ((throughput, "throughput_rows"), (roofline, "measured_roofs")):
        monkeypatch.setattr(*function, stop)
    monkeypatch.setattr(roofline, "modelled_rows", lambda *_: [])
    monkeypatch.setattr(pictures, "draw_roofline", lambda *_: None)
    files = ["--measured", str(tmp_path / "a.json"), "-o", str(tmp_path / "b.json")]
    assert main(["roofline", *files, "--picture", str(tmp_path / "b.svg")]) == 0
    assert "some CPU, one thread: product 80.0 GFLOP/s" in capsys.readouterr().out
    kept = load(tmp_path / "b.json")
    assert {key: kept[key] for key in before} == before
    assert (kept["roofs"], kept["measured"]) == (roofs, ROWS)
    assert kept["modelled_with"]["date"] > "2026-01-01" and kept["modelled_with"]["versions"]["torch"]
    save(tmp_path / "d.json", "operator", {})
    with pytest.raises(SystemExit):
        main(["roofline", "--measured", str(tmp_path / "d.json")])
    assert "must be results of `eagc bench roofline`" in capsys.readouterr().err


def test_pictures_are_drawn_before_tables_are_printed(measured, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(pictures, "draw_overhead", lambda path, _: drawn.append(path))
    monkeypatch.setattr(tables.training_step, "steps", stop)
    with pytest.raises(Stop):
        main(["overhead", "--picture", str(tmp_path / "new" / "p.png")])
    assert drawn == [tmp_path / "new" / "p.png"] and drawn[0].parent.is_dir()


def test_a_place_that_cannot_be_written_is_refused(tmp_path, capsys, measured):
    (tmp_path / "file").touch()
    for option, path in (("-o", "file/r.json"), ("-o", ""), ("--picture", "file/p.svg")):
        assert str(tmp_path / path) in refused(capsys, "overhead", option, tmp_path / path)
    assert f"--output {tmp_path / 'file'} is a file; name a folder" in refused(
        capsys, "all", "-o", tmp_path / "file"
    )
    assert measured == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # what was tried has left nothing


def test_all_is_every_command_with_its_file(tmp_path, monkeypatch):
    seen = {}

    def keep(arguments, measured=None):
        seen[arguments.command] = arguments
        if arguments.command == "throughput":
            save(arguments.output, "throughput", {"throughput": ROWS})
        assert (measured == ROWS) == (arguments.command == "roofline")

    names = [
        "operator",
        "throughput",
        "host",
        "overhead",
        "loader",
        "conceptor",
        "estimate",
        "scale",
        "roofline",
    ]
    for name in names:
        monkeypatch.setattr(f"eagc_ops.bench.commands.{name}.run", keep)
    assert main(["all", "--quick", "-o", str(tmp_path / "r")]) == 0
    assert list(seen) == names
    assert all(own.quick and own.output == tmp_path / "r" / f"{name}.json" for name, own in seen.items())
    assert {name: own.picture for name, own in seen.items() if hasattr(own, "picture")} == {
        name: tmp_path / "r" / f"{name}.svg" for name in ("overhead", "roofline")
    }
    assert (seen["overhead"].rows, seen["overhead"].rounds, seen["throughput"].rows) == (None, None, None)


def test_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--help"])
    assert exit.value.code == 0
    out = capsys.readouterr().out
    for name in commands.COMMANDS:
        assert f"\n  {name} " in out


@pytest.mark.parametrize("argv", [[], ["fly"]], ids=["no command", "an unknown command"])
def test_a_missing_or_unknown_command_is_refused(argv, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("eagc bench: ") and "COMMAND" in err and err.count("\n") == 1
    assert all(name in err for name in commands.COMMANDS)  # what there is to choose from


def test_the_dtypes_of_the_option_are_those_of_the_benchmark():
    assert list(DTYPES) == list(kernels.DTYPES)
