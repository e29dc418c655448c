"""`eagc discover`, `eagc predict` and `eagc export` as a user types them."""

import csv
import io
import shutil

import pytest
import torch
from commands import call

from eagc_ops.app.cli import main
from eagc_ops.discovery.page import page_size


def words(home, output="found", *more):
    encoder = f"--weights {home}/weights/vit.safetensors --backbone vit_digits --image-size 16"
    options = f"{encoder} --device cpu --precision no --k 5 --fast"
    places = [f"{home}/photos/labelled", f"{home}/photos/new", "-o", f"{home}/{output}"]
    return ["discover", *places, *options.split(), *more]


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture(scope="module")
def found(home):
    assert main(words(home)) == 0
    return home / "found"


def test_what_is_printed(capsys, home, found):
    code, out, _ = call(capsys, *words(home))
    lines = out.splitlines()
    assert code == 0 and lines[0] == f"continuing the discovery in {found}"
    assert lines[1].startswith("This is the first answer")
    assert lines[2].startswith("found ") and "known ones; K = 5, given." in lines[2]
    size = page_size(found / "discovered.html")
    assert lines[-3] == f"page: {found}/discovered.html ({size})"
    assert [line.split(":")[1].strip() for line in lines[-2:]] == [
        f"eagc open {found}",
        f"eagc predict {found} IMAGES",
    ]
    named = {row["category"] for row in table((found / "assignments.csv").read_text())}
    page = (found / "discovered.html").read_text()
    assert all(name in page for name in named | {"bee", "cat", "dog"})


def test_predict_prints_the_rows_of_the_discovery(capsys, home, found):
    """To standard output, to a file, and for a list; the images of a run need not be there."""
    expected = table((found / "assignments.csv").read_text())
    code, out, _ = call(capsys, "predict", str(found), f"{home}/photos/new")
    assert code == 0
    rows = table(out)
    assert [row["path"] for row in rows] == [row["path"] for row in expected]
    for row, other in zip(rows, expected):
        assert [row[name] for name in ("category", "kind", "status")] == [
            other[name] for name in ("category", "kind", "status")
        ]
        for name in ("confidence", "margin", "distance"):
            assert float(row[name]) == pytest.approx(float(other[name]), abs=2e-4)
    (home / "list.txt").write_text(f"{expected[4]['path']}\n")
    moved = home / "moved"
    shutil.copytree(found, moved)
    code, out, _ = call(capsys, "predict", str(moved), f"@{home}/list.txt", "-o", f"{home}/deep/table.csv")
    assert (code, out) == (0, "")
    (row,) = table((home / "deep" / "table.csv").read_text())
    assert (row["path"], row["category"]) == (expected[4]["path"], expected[4]["category"])


def test_export_names_the_file_and_how_to_load_it(capsys, home, found):
    code, out, _ = call(capsys, "export", str(found), "-o", f"{home}/model.pt2")
    assert code == 0 and out.startswith(f"network: {home}/model.pt2 ")
    extra = {"eagc.json": ""}
    network = torch.export.load(f"{home}/model.pt2", extra_files=extra).module()
    assert network(torch.zeros(4, 3, 16, 16)).shape == (4, 5)
    assert all(
        row["category"] in extra["eagc.json"] for row in table((found / "assignments.csv").read_text())
    )


def test_errors_are_in_the_words_of_the_command_line(capsys, home, found):
    (home / "photos" / "new" / "empty.jpg").write_bytes(b"")
    code, _, err = call(capsys, *words(home, "other"))
    (home / "photos" / "new" / "empty.jpg").unlink()
    assert code == 2
    line = err.splitlines()[-1]
    assert line.startswith("eagc discover: 1 of 55 images cannot be read: ") and line.endswith(
        "empty.jpg (the file is empty); repair them, or leave them out with --skip-unreadable"
    )
    code, _, err = call(capsys, *words(home, "found", "--holdout", "0.5"))
    assert (code, err.splitlines()[-1]) == (
        2,
        f"eagc discover: --output {found} holds a discovery of other folders or options: choose a different "
        "folder",
    )
    code, _, err = call(capsys, *words(home, "found", "--image-size", "32"))
    assert code == 2 and "--image-size cannot change: output" in err
    code, _, err = call(capsys, *words(home, "other", "--k", "2"))
    assert code == 2 and "--k must be >= 3, the number of known classes, got 2" in err


def test_a_duplicate_is_named_with_its_option(capsys, home, found):
    copy = home / "photos" / "new" / "copy.png"
    shutil.copy(home / "photos" / "labelled" / "bee" / "0.png", copy)
    try:
        code, out, _ = call(capsys, *words(home, "third", "--holdout", "0"))
    finally:
        copy.unlink()
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("note: images that are both")]
    assert line == (
        "note: images that are both labelled and unlabelled, used on both sides; --drop-duplicates leaves "
        f"them out: 1 (the first: {copy} = {home}/photos/labelled/bee/0.png)"
    )
    assert "there will be no accuracy" in out and "accuracy on known" not in out
