"""`eagc bench`: what is refused before anything is measured, what is handed on, and that results are saved before anything else is done.

The suites: not measured unless the allocator is pinned; page faults beside every time.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagc_ops.bench import cli, conceptor, operator, overhead, roofline, throughput
from eagc_ops.bench.measure import PINNED, load, save
from eagc_ops.kernels import aot

BENCH = Path(cli.__file__).parent
ROWS = [{"kind": "measured", "a": 1}]
TABLES = dict.fromkeys(("steps", "evaluation", "reference", "epochs", "conceptor"), ROWS) | {
    "bars": [],
    "settings": {},
}  # bars: promised for one setting only


@pytest.fixture(autouse=True)
def this_process(monkeypatch):
    """A pinned process would be another one."""
    monkeypatch.setattr(cli, "pin_process", lambda: None)


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured: the arguments of `overhead` and `throughput_rows` are kept, their results are ROWS, tables are printed as is."""
    calls = []
    monkeypatch.setattr(overhead, "overhead", lambda *given, **more: calls.append((given, more)) or TABLES)
    monkeypatch.setattr(throughput, "throughput_rows", lambda *given: calls.append(given) or ROWS)
    for module in (operator, overhead, throughput):
        for name in [name for name in vars(module) if name == "table" or name.endswith("_table")]:
            monkeypatch.setattr(module, name, lambda rows=ROWS: rows)
    return calls


def refused(capsys, *argv):
    """The one line of a refusal."""
    with pytest.raises(SystemExit) as exit:
        cli.main([*map(str, argv)])
    out, err = capsys.readouterr()
    assert (exit.value.code, out) == (2, "")
    assert err.startswith(f"eagc bench {argv[0]}: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(("argv", "words"), [
    ("overhead --rounds 0", "--rounds: got 0; give a whole number of at least 1"),
    ("overhead --rounds -1", "--rounds: got -1; give"),
    ("overhead --rounds 2.5", "--rounds: got 2.5; give"),
    ("overhead --rows 6", "--rows: got 6; give a positive multiple of 4 (two views of every image, half the images labelled)"),
    ("overhead --rows 0", "--rows: got 0; give a positive multiple of 4"),
    ("overhead --root data", "--root data needs --dataset"),
    ("overhead --split-file split.json", "--split-file split.json needs --dataset"),
    ("overhead --picture x.foo", "--picture: got x.foo; give a file name that ends in .svg or .png"),
    ("roofline --picture x", "--picture: got x; give a file name that ends in .svg or .png"),
    ("throughput --rows 16 1", "--rows: got 1; give a whole number of at least 4"),
    ("throughput --dims 0", "--dims: got 0; give a whole number of at least 4"),
    ("throughput --budget 0", "--budget: got 0; give a positive number of seconds"),
    ("throughput --budget nan", "--budget: got nan; give"),
    ("throughput --budget much", "--budget: got much; give"),
    ("aot --jobs 0", "--jobs: got 0; give a whole number of at least 1"),
])  # fmt: skip
def test_wrong_options_are_refused(argv, words, capsys, monkeypatch):
    monkeypatch.setattr(cli, "make_folders", lambda _: pytest.fail("accepted"))
    assert words in refused(capsys, *argv.split())


@pytest.mark.parametrize(("argv", "words"), [
    ("--dataset cub", "--dataset cub without --root: root 'None' is not a folder; CUB"),
    ("--dataset cub --root nowhere", "--dataset cub --root nowhere: root 'nowhere' is not a folder"),
    ("--dataset birds --root nowhere", "dataset 'birds' is not known; choose one of"),
    ("--dataset digits --root nowhere", "have no root"),
    ("--dataset digits --rows 4000", "450 labelled and 1347 unlabelled images; 8 of each are needed, and 2000 in all for --rows 4000"),
])  # fmt: skip
def test_data_that_will_not_do_is_refused(argv, words, capsys, measured):
    assert words in refused(capsys, "overhead", *argv.split())
    assert measured == []


def test_overhead_is_given_what_was_asked(measured):
    noise = {"dataset": None, "root": None, "split_file": None}
    for argv, rows, rounds, images, data in (
        ("", 16, 9, 16, noise),
        ("--quick", 16, 3, 8, noise),
        ("--quick --rounds 1 --rows 4", 4, 1, 8, noise),
        ("--dataset digits", 16, 9, 16, {**noise, "dataset": "digits"}),  # needs no root
    ):
        assert cli.main(["overhead", *argv.split()]) == 0
        assert measured.pop() == ((cli.BACKBONES[0], rows, cli.device(), rounds, images), data), argv


def test_throughput_is_given_what_was_asked(measured):
    assert (
        cli.main(
            [
                "throughput",
                "--quick",
                "--rows",
                "8",
                "4",
                "--dims",
                "16",
                "--dtypes",
                "fp32",
                "--budget",
                "0.5",
            ]
        )
        == 0
    )
    assert measured == [([(8, 16, "fp32"), (4, 16, "fp32")], cli.device(), 0.5)]


def test_a_bug_in_the_measuring_is_not_taken_for_a_wrong_option(monkeypatch):
    def broken(*_, **__):
        raise ValueError("shapes differ")

    monkeypatch.setattr(overhead, "overhead", broken)
    with pytest.raises(ValueError, match="shapes differ"):
        cli.main(["overhead"])


class Stop(Exception):
    pass


def stop(*_, **__):
    raise Stop


COMMANDS = {  # what is measured, and what comes next
    "operator": ({(operator, "operator_rows"): ROWS, (operator, "conceptor_rows"): ROWS}, (operator, "operator_table")),
    "throughput": ({(throughput, "throughput_rows"): ROWS}, (throughput, "table")),
    "roofline": ({(throughput, "throughput_rows"): ROWS, (roofline, "measured_roofs"): {}, (roofline, "modelled_rows"): []},
                 (roofline, "draw")),
    "overhead": ({(overhead, "overhead"): TABLES}, (overhead, "draw")),
    "conceptor": ({(conceptor, "conceptor_tables"): {"settings": {}, "times": ROWS, "quality": ROWS}}, (conceptor, "time_table")),
    "aot": ({(aot, "cases"): [], (aot, "compile_all"): []}, (aot, "table")),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_results_are_saved_whatever_happens_to_tables_and_pictures(name, tmp_path, monkeypatch):
    stubs, following = COMMANDS[name]
    for (module, function), found in stubs.items():
        monkeypatch.setattr(module, function, lambda *_, found=found, **__: found)
    monkeypatch.setattr(*following, stop)
    picture = ["--picture", str(tmp_path / "p.svg")] if name in ("roofline", "overhead") else []
    with pytest.raises(Stop):
        cli.main([name, "-o", str(tmp_path / "new" / "folder" / "r.json"), *picture])
    record = load(tmp_path / "new" / "folder" / "r.json")
    assert record["benchmark"] == name
    key = {"roofline": "measured", "conceptor": "times", "aot": "cases", "overhead": "steps"}.get(name, name)
    assert record[key] == ([] if name == "aot" else ROWS)


def test_pictures_are_drawn_before_tables_are_printed(measured, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(overhead, "draw", lambda path, _: drawn.append(path))
    monkeypatch.setattr(overhead, "step_table", stop)
    with pytest.raises(Stop):
        cli.main(["overhead", "--picture", str(tmp_path / "new" / "p.png")])
    assert drawn == [tmp_path / "new" / "p.png"] and drawn[0].parent.is_dir()


def test_a_place_that_cannot_be_written_is_refused(tmp_path, capsys, measured):
    (tmp_path / "file").touch()
    for option, path in (("-o", "file/r.json"), ("-o", ""), ("--picture", "file/p.svg")):
        assert str(tmp_path / path) in refused(capsys, "overhead", option, tmp_path / path)
    assert "cannot be written" in refused(capsys, "all", "-o", tmp_path / "file")
    assert measured == []
    assert [path.name for path in tmp_path.iterdir()] == ["file"]  # what was tried has left nothing


def test_all_is_every_command_with_its_file(tmp_path, monkeypatch):
    seen = {}

    def keep(arguments, measured=None):
        seen[arguments.command] = arguments
        if arguments.command == "throughput":
            save(arguments.output, "throughput", {"throughput": ROWS})
        assert (measured == ROWS) == (arguments.command == "roofline")

    for name in ("run_operator", "run_throughput", "run_overhead", "run_conceptor", "draw_roofline"):
        monkeypatch.setattr(cli, name, keep)
    assert cli.main(["all", "--quick", "-o", str(tmp_path / "r")]) == 0
    assert list(seen) == ["operator", "throughput", "overhead", "conceptor", "roofline"]
    assert all(own.quick and own.output == tmp_path / "r" / f"{name}.json" for name, own in seen.items())
    assert {name: own.picture for name, own in seen.items() if hasattr(own, "picture")} == {
        name: tmp_path / "r" / f"{name}.svg" for name in ("overhead", "roofline")
    }
    assert (seen["overhead"].rows, seen["overhead"].rounds, seen["throughput"].rows) == (16, None, None)


# The suites --------------------------------------------------------------------------------------------------------------------------


def suites(*arguments, pinned):
    # In a worker of xdist, which this process may be, pytest-benchmark writes no file: the suites are to know nothing of it.
    environment = {
        name: value for name, value in os.environ.items() if name not in PINNED and "XDIST" not in name
    }
    environment |= PINNED if pinned else {}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-o",
        "python_files=suite_*.py",
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=BENCH.parent)


def test_suites_are_refused_with_the_command_to_run():
    done = suites(BENCH / "suite_operator.py", "--collect-only", pinned=False)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert (
        " ".join(f"{name}={value}" for name, value in PINNED.items()) + f" {sys.executable} -m pytest"
        in done.stderr
    )


def test_every_suite_counts_page_faults():
    done = suites(BENCH, "--setup-plan", pinned=True)
    lines = [line for line in done.stdout.splitlines() if "::" in line and "(fixtures used:" in line]
    assert {re.search(r"suite_\w+", line)[0] for line in lines} == {
        path.stem for path in BENCH.glob("suite_*.py")
    }
    assert all(" measured," in line for line in lines)


def test_page_faults_and_threads_are_those_of_the_call(tmp_path):
    shutil.copy(BENCH / "conftest.py", tmp_path)
    (tmp_path / "suite_x.py").write_text(
        "import mmap, pytest, torch\n"
        "def touch(pages):\n"  # of fresh memory: every one is a fault
        "    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:\n"
        "        for page in range(pages): memory[page * mmap.PAGESIZE] = 1\n"
        "    return torch.get_num_threads()\n"
        "def test_default(measured): assert measured(lambda: touch(40)) == 1\n"
        "class TestOwn:\n"
        "    @pytest.fixture\n"
        "    def threads(self): return 2\n"
        "    def test_own(self, measured): assert measured(lambda: touch(7), rounds=5) == 2\n"
    )
    done = suites(tmp_path, "--benchmark-json", tmp_path / "b.json", "--benchmark-max-time=0.01", pinned=True)
    assert done.returncode == 0, done.stdout
    found = {
        one["name"]: one["extra_info"] for one in json.loads((tmp_path / "b.json").read_text())["benchmarks"]
    }
    assert found == {
        "test_default": {"threads": 1, "page_faults": 40},
        "test_own": {"threads": 2, "page_faults": 7},
    }
    assert "40 page faults a call: " in done.stdout
