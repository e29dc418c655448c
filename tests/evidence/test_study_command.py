"""`eagc study` on a person's own images, and in a process of its own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagc_ops.app.cli import main

EAGC = [sys.executable, "-m", "eagc_ops.app.cli"]
DOCS = str(Path(__file__).parents[2] / "docs")


@pytest.fixture
def own(data, tmp_path):
    """The words for a study of a few images, of which some classes are known."""
    words = ["study", "-o", str(tmp_path / "study"), "--backbone", "vit_digits", "--image-size", "16"]
    return *words, *(w for name, value in data.items() for w in (f"--{name.replace('_', '-')}", str(value)))


def test_own_images_are_counted(own, capsys):
    assert main([*own, "--seeds", "2", "--epochs", "3", "--batch-size", "30", "--dry-run"]) == 0
    plan = capsys.readouterr().out.splitlines()
    assert plan[0].split("  ")[1] == "3 known of 5 classes, recipe paper"
    assert "6 arms x 2 seeds = 12 runs, 0 finished; left: 72 steps" in plan[0]  # 60 images
    assert plan[1].startswith("  12 runs, 0 finished")


def test_without_a_split_half_of_the_classes_play_novel(own, data, tmp_path, capsys):
    at = own.index("--split-file")
    words = [*own[:at], *own[at + 2 :], "--seeds", "2", "--batch-size", "30", "--dry-run"]
    assert main(words) == 0
    file = tmp_path / "study" / "split.json"
    told, plan, *_ = capsys.readouterr().out.splitlines()
    assert told == f"3 of 5 classes were drawn to be known, and the others play novel: {file}"
    assert plan.split("  ")[1] == "3 known of 5 classes, recipe paper"
    split = json.loads(file.read_text())
    assert len(split["known_classes"]) == 3 and split["labelled_fraction"] == 0.5
    file.write_text(json.dumps({**split, "known_classes": ["class0", "class1", "class2", "class4"]}))
    assert main(words) == 0  # the same command goes on with the split that is there
    assert "  4 known of 5 classes" in capsys.readouterr().out.splitlines()[0]

    few = tmp_path / "few"
    shutil.copytree(data["root"], few, ignore=shutil.ignore_patterns("class3", "class4"))
    file.unlink()
    assert main([*words, "--root", str(few)]) == 2
    error = capsys.readouterr().err
    assert "has 3 class folders: a study needs 3 known classes and one at least that plays novel" in error
    assert not file.exists()


def test_what_a_study_refuses(own, data, tmp_path, capsys):
    few = str(tmp_path / "few.json")
    split = json.loads(Path(data["split_file"]).read_text())
    Path(few).write_text(json.dumps({**split, "known_classes": split["known_classes"][:2]}))
    for words, message in {
        ("study", "--backbone", "vit_digits"): "--backbone belongs to a study of your own images: name their "
        "folder too, with --root",
        (
            *own,
            "--known",
            "5",
        ): "--known chooses among the regimes of glyphs; the known classes of --root are in --split-file",
        ("study", "--methods", "legogcd", "--known", "5"): "no part of the study has --known 5, --recipes "
        "paper release and --methods legogcd at once: other methods than simgcd are trained at 10",
        (*own, "--recipes", "release", "--batch-size", "30"): "no part of the study has",
        (*own, "--confirm"): "--confirm is a study of glyphs: leave it out, or --root",
        (*own, "--earlier", "docs"): "--earlier takes over studies of glyphs: leave it out, or --root",
        ("study", "--confirm", "--known", "20"): "and --confirm at 5 and 10 known classes by simgcd",
        (
            "study",
            "--confirm",
            "--seeds",
            "3",
        ): "--confirm has seeds and epochs of its own: leave out --seeds",
        ("study", "--earlier", few): f"--earlier {few} has no study.json: name the folder of a study",
        (
            "study",
            "--confirm",
            "--earlier",
            DOCS,
        ): "holds a study with other data, seeds or epochs, which are "
        "fixed when it begins: leave out --earlier, or use the options of that study",
        (
            *own,
            "--split-file",
            few,
            "--batch-size",
            "30",
        ): f"--split-file {few} has 2 known classes, the smallest "
        "with 5 labelled images: the probe of a study needs at least 3 classes with 2 labelled images each",
        own: "--batch-size 128 is larger than the 60 images of an epoch; choose a smaller one",
    }.items():
        assert main([*words, "--dry-run"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_the_plan_beside_earlier_evidence_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["study", "--earlier", DOCS, "--dry-run"]) == 0
    plan = capsys.readouterr().out.splitlines()
    complete = [line for line in plan if line.endswith("complete in earlier evidence")]
    assert len(complete) >= 12
    assert complete[0].startswith("  10 known of 60 classes, recipe paper  ")
    assert main(["study", "--confirm", "--dry-run"]) == 0
    assert "  120 runs, 0 finished; left: " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_in_the_background_until_it_is_stopped(own, tmp_path):
    """Even if the shell that started it ignores Ctrl-C, as shells do in scripts."""
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    ran = subprocess.run(
        [*EAGC, *own, "--seeds", "50", "--batch-size", "30", "--jobs", "1", "--background"],
        env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    process = int(re.search(r"process (\d+) goes on, its lines in ", ran.stdout)[1])
    log = tmp_path / "study" / "study.log"
    try:
        for _ in range(1200):
            if "300 runs, 0 of them finished before" in log.read_text():
                break
            time.sleep(0.1)
        os.kill(process, signal.SIGINT)
        for _ in range(600):
            if not _lives(process):
                break
            time.sleep(0.1)
        assert not _lives(process)
    finally:
        if _lives(process):
            os.killpg(process, signal.SIGKILL)
    assert log.read_text().splitlines()[-1].startswith("eagc study: interrupted"), log.read_text()
    assert not (tmp_path / "study" / ".lock").exists()


def _lives(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
