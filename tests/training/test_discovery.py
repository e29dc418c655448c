"""Discoveries in small photographs: files, the truth that nothing sees, resuming, links, and other "
"options."""

import csv
import json
import os
import shutil

import photographs
import pytest
import small_runs
import torch
from small_runs import SmallHead  # noqa: F401  (registers the small methods)

from eagc_ops.training import discover, runs
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.checkpoint import load_checkpoint
from eagc_ops.training.engine.loop import Callback, Loop
from eagc_ops.training.engine.run_folder import RunFolder
from eagc_ops.training.prediction import predict
from eagc_ops.training.report.category_files import sort_into
from eagc_ops.training.report.page import write_report

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below", "ignore:K = ")

# SelEx puts images into all of its clusters, however short it is trained.
WHOLE = {"k": "estimate", "method": "small_selex", "embedding_dim": 32}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    home = tmp_path_factory.mktemp("photos")
    return home, photographs.write_photographs(home)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Two epochs of 6 steps."""
    files = small_runs.write_files(tmp_path_factory.mktemp("weights"))
    return {
        "method": "small",
        "backbone": "vit_digits",
        "image_size": 16,
        "weights": files["weights"],
        "epochs": 2,
        "batch_size": 8,
        "reference_epochs": 1,
        "device": "cpu",
        "k": 5,
        **{"backbone_lr": 0.01, "head_lr": 0.01, "lr_floor": 0.1},  # steps that keep several categories
    }


def made(photos, output, settings, **options):
    """(content of categories.json, lines that were said)."""
    lines = []
    home = photos[0]
    content = discover(home / "labelled", home / "new", output, say=lines.append, **{**settings, **options})
    return content, lines


def rows(file):
    with open(file, newline="") as opened:
        return list(csv.DictReader(opened))


def write_truth(file, truth):
    file.write_text("path,class\n" + "".join(f"{path},{kind}\n" for path, kind in truth.items()))
    return file


@pytest.fixture(scope="module")
def whole(photos, settings, tmp_path_factory):
    """A discovery with an estimated K: (folder, content, lines, digests of the photographs before, after)."""
    output = tmp_path_factory.mktemp("whole") / "found"
    before = photographs.digest(photos[0])
    content, lines = made(photos, output, settings, **WHOLE)
    return output, content, lines, before, photographs.digest(photos[0])


def test_nothing_of_the_users_is_changed(whole):
    assert whole[3] == whole[4]


def test_files_of_a_discovery(photos, whole):
    output, content, *_ = whole
    assert json.loads((output / "categories.json").read_text()) == content
    assert list(content) == [
        "version", "labelled", "unlabelled", "method", "eagc", "k", "k_estimated", "images", "rules", "map",
        "holdout", "truth", "categories",
    ]  # fmt: skip
    assigned, places = rows(output / "assignments.csv"), rows(output / "map.csv")
    assert list(assigned[0]) == ["path", "category", "kind", "confidence", "margin", "distance", "status"]
    assert list(places[0]) == ["path", "x", "y"]
    paths = sorted(photos[1])
    assert [row["path"] for row in assigned] == [row["path"] for row in places] == paths
    named = {entry["name"]: entry for entry in content["categories"]}
    assert {row["category"] for row in assigned} == {name for name in named if named[name]["size"]}
    for name, entry in named.items():
        own = [row for row in assigned if row["category"] == name]
        assert (entry["size"], {entry["kind"]}) == (len(own), {row["kind"] for row in own} or {"known"})
        assert entry["confidence"] == pytest.approx(
            sum(float(row["confidence"]) for row in own) / max(len(own), 1), abs=1e-3
        )
        assert {*entry["typical"], *entry["doubtful_images"]} <= {row["path"] for row in own}
    statuses = [row["status"] for row in assigned]
    assert content["images"] == {
        "labelled": 18,
        "held_out": 6,
        "unlabelled": 30,
        "doubtful": statuses.count("doubtful"),
        "nowhere": statuses.count("nowhere"),
    }
    assert content["k_estimated"] and content["k"] == RunFolder.open(output).config.k
    assert content["truth"] is None and content["eagc"] is True


def test_only_held_out_images_give_an_accuracy(photos, whole):
    """Without truth there is no All, Old and New, in no file."""
    output, content, lines, *_ = whole
    folder = RunFolder.open(output)
    assert folder.result() == {**folder.result(), "last": {"epoch": 1}, "best": None}
    assert not {"all", "old", "new"} & {key for line in folder.metrics() for key in line}
    assert not folder.best.exists()
    assert not any("All " in line for line in lines)
    assert [line for line in lines if "accuracy" in line] == [
        f"accuracy on the 6 held-out images of known classes: {content['holdout']['accuracy']:.1%}"
    ]
    with pytest.raises(ConfigError, match="is a discovery: nobody knows the truth"):
        runs.evaluate(output)
    with pytest.raises(ConfigError, match="is a discovery: nobody knows the truth"):
        write_report([output], output.parent / "report")


def test_held_out_images_are_not_trained_on_and_are_scored_by_their_class(whole):
    output, content, *_ = whole
    listing = json.loads((output / "images.json").read_text())
    held = dict(listing["held_out"])
    used = {path for path, _ in listing["training"]} | {*listing["unlabelled_images"]}
    assert len(held) == 6 and not used & held.keys()
    _, predicted = predict(output, held)
    right = [row[1] == listing["classes"][c] for row, c in zip(predicted, held.values())]
    assert content["holdout"] == {"images": 6, "accuracy": sum(right) / 6}


def test_what_it_decides_is_said_with_the_reason(whole):
    _, content, lines, *_ = whole
    assert lines[0].startswith("labelled: 18 images of 3 classes; 6 more are held out (20% of every class")
    assert lines[1] == "unlabelled: 30 images"
    assert "trunk cache: no, 2 epochs need no more passes over the images than it would" in lines
    assert any(f"(K = {content['k']}, estimated)" in line for line in lines)


def test_a_complete_discovery_is_written_again_without_training(photos, settings, whole, monkeypatch):
    output, content, *_ = whole
    before = {
        name: (output / name).read_bytes() for name in ("assignments.csv", "map.csv", "categories.json")
    }
    for name in before:
        (output / name).unlink()
    monkeypatch.setattr(Loop, "fit", None)  # training would fail
    monkeypatch.setattr("eagc_ops.training.discovery.Predictor", None)  # and so would encoding
    monkeypatch.setattr("eagc_ops.training.discovery.map_2d", None)  # and drawing the map
    again, lines = made(photos, output, settings, **WHOLE)
    assert again == content
    assert lines[0] == f"{output} is trained: what was found is written again"
    assert {name: (output / name).read_bytes() for name in before} == before


@pytest.fixture(scope="module")
def known_truth(photos, settings, tmp_path_factory):
    """The discovery with the truth, and with a permuted one: (folder, content, lines) of each."""
    home = tmp_path_factory.mktemp("truth")
    paths, kinds = list(photos[1]), list(photos[1].values())
    results = []
    for name, order in (("right", kinds), ("permuted", kinds[7:] + kinds[:7])):
        file = write_truth(home / f"{name}.csv", dict(zip(paths, order)))
        content, lines = made(photos, home / name, settings, truth=file, trunk_cache=str(home / "cache"))
        results.append((home / name, content, [line.replace(name, "") for line in lines]))
    return results


def test_the_truth_changes_nothing_but_the_accuracy(known_truth):
    (a, content, lines), (b, other, other_lines) = known_truth
    for name in ("last.safetensors", "features.safetensors", "categories.safetensors"):
        (ours, _), (theirs, _) = load_checkpoint(a / name), load_checkpoint(b / name)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    for name in ("assignments.csv", "map.csv", "images.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    assert content.pop("truth") != other.pop("truth")
    assert content == other
    different = [pair for pair in zip(lines, other_lines) if pair[0] != pair[1]]
    assert len(lines) == len(other_lines) and len(different) == 1
    assert different[0][0].startswith("with the truth of ")


def test_the_accuracy_with_the_truth(photos, known_truth):
    output = known_truth[0][0]
    content = json.loads((output / "categories.json").read_text())
    kinds = [photographs.KINDS.index(photos[1][row["path"]]) for row in rows(output / "assignments.csv")]
    probabilities = load_checkpoint(output / "features.safetensors")[0]["probabilities"]
    assert content["truth"] == accuracy(probabilities.argmax(1), torch.tensor(kinds), 3)._asdict()


def test_a_truth_that_lacks_images_is_refused_before_training(photos, settings, tmp_path):
    (path, _), *others = photos[1].items()
    file = write_truth(tmp_path / "truth.csv", dict(others))
    with pytest.raises(
        ValueError, match=f"truth .* has no class for 1 of 30 unlabelled images, the first is {path}"
    ):
        made(photos, tmp_path / "found", settings, truth=file)
    file.write_text("file,label\n")
    with pytest.raises(ValueError, match=r"truth .*truth\.csv must begin with the line path,class"):
        made(photos, tmp_path / "found", settings, truth=file)
    assert not (tmp_path / "found" / "run.json").exists()


class Stop(Callback):
    def after_update(self, loop, rows):
        if loop.epoch == 1 and loop.position == 1:
            raise KeyboardInterrupt


def test_an_interrupted_discovery_goes_on_with_the_same_call(
    photos, settings, known_truth, tmp_path, monkeypatch
):
    """The same weights and files as of one that was not interrupted; new photographs do not disturb it."""
    home = tmp_path / "photos"
    shutil.copytree(photos[0], home)
    options = {**settings, "trunk_cache": None, "checkpoint_every": 1}
    fit = runs._fit
    monkeypatch.setattr(runs, "_fit", lambda e, f, c, say: fit(e, f, [*c, Stop()], say))
    with pytest.raises(KeyboardInterrupt):
        made((home,), tmp_path / "found", options)
    assert RunFolder.open(tmp_path / "found").result() is None
    monkeypatch.setattr(runs, "_fit", fit)
    shutil.copy(next((home / "new").rglob("*.png")), home / "new" / "late.png")
    content, lines = made((home,), tmp_path / "found", options)
    assert lines[0] == f"going on with the discovery in {tmp_path / 'found'}"
    assert content["images"]["unlabelled"] == 30
    other, _ = made(photos, tmp_path / "whole", options)
    (ours, _), (theirs, _) = (
        load_checkpoint(tmp_path / name / "last.safetensors") for name in ("found", "whole")
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    drop = {"labelled", "unlabelled", "categories"}
    assert {k: v for k, v in content.items() if k not in drop} == {
        k: v for k, v in other.items() if k not in drop
    }


def test_a_folder_with_another_discovery_is_refused(photos, settings, whole, tmp_path):
    output = whole[0]
    with pytest.raises(
        ConfigError, match="holds a discovery of other folders or options: choose a different"
    ):
        made(photos, output, settings, **WHOLE, holdout=0.5)
    with pytest.raises(ConfigError, match="epochs cannot change in an existing run"):
        made(photos, output, settings, **WHOLE, epochs=3)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"output .*full is not an empty folder"):
        made(photos, tmp_path / "full", settings)


def test_output_inside_of_the_photographs_is_refused(photos, settings):
    for place in ("new", "new/2024/found", "labelled/found"):
        with pytest.raises(ValueError, match=r"output .* lies inside of your images"):
            made(photos, photos[0] / place, settings)


def test_links_by_category(photos, settings, whole, tmp_path):
    output = whole[0]
    (tmp_path / "links").mkdir()
    for _ in range(2):  # the second time, the links of the first are replaced
        made(photos, output, settings, **WHOLE, sort_into=tmp_path / "links")
        links = {str(link): os.readlink(link) for link in (tmp_path / "links").glob("*/*")}
        assert {(os.path.basename(os.path.dirname(link)), target) for link, target in links.items()} == {
            (row["category"], row["path"]) for row in rows(output / "assignments.csv")
        }
        assert all(os.path.islink(link) for link in links)
    (tmp_path / "links" / "mine").mkdir()
    (tmp_path / "links" / "mine" / "note.txt").write_text("x")
    made(photos, output, settings, **WHOLE, sort_into=tmp_path / "links")
    assert (tmp_path / "links" / "mine" / "note.txt").exists()
    for place, message in (
        (tmp_path, "sort_into .* is not empty, and was not made for links"),
        (photos[0] / "new" / "links", "sort_into .* lies inside of your images"),
    ):
        with pytest.raises(ValueError, match=message):
            made(photos, output, settings, **WHOLE, sort_into=place)
    assert photographs.digest(photos[0]) == whole[3]


def test_images_of_the_same_name_have_links_of_their_own(tmp_path):
    paths = [str(tmp_path / folder / "a.png") for folder in ("x", "y", "z")]
    sort_into(tmp_path / "links", [(path, "bee") for path in paths])
    found = sorted((link.name, os.readlink(link)) for link in (tmp_path / "links" / "bee").iterdir())
    assert found == [("a-2.png", paths[1]), ("a-3.png", paths[2]), ("a.png", paths[0])]


def test_a_trunk_cache_where_it_pays_and_fits(photos, settings, tmp_path, monkeypatch):
    """5 epochs are 11 passes over the images; the cache needs 9."""
    _, lines = made(photos, tmp_path / "yes", settings, epochs=5)
    (said,) = [line for line in lines if line.startswith("trunk cache")]
    assert said.startswith("trunk cache: yes, 0.0028 GB in ")
    assert said.endswith("until the discovery is complete: the frozen part of the encoder sees every image 9 "
                         "times instead of 11")  # fmt: skip
    assert "tokens" in RunFolder.open(tmp_path / "yes").facts.inputs
    assert not (tmp_path / "yes" / "trunk-cache").exists()


@pytest.mark.parametrize(
    ("free", "words", "chosen"),
    [(4e6, "0.0014 GB in half precision", True), (2e6, "no, it would need 0.0014 GB", None)],
)
def test_a_trunk_cache_takes_no_more_than_half_of_the_free_disk(
    photos, settings, tmp_path, monkeypatch, free, words, chosen
):
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    monkeypatch.setattr("eagc_ops.training.discovery.shutil.disk_usage", lambda _: usage)

    def train(config, _):
        assert (config.trunk_cache and config.cache_half) == chosen
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", train)
    lines = []
    with pytest.raises(KeyboardInterrupt):
        discover(
            photos[0] / "labelled",
            photos[0] / "new",
            tmp_path / "found",
            say=lines.append,
            **{**settings, "epochs": 5},
        )
    assert any(words in line for line in lines)


def test_the_python_example_names_the_new_categories(whole):
    new = [entry["name"] for entry in whole[1]["categories"] if entry["kind"] == "new"]
    assert new == [f"new-{i + 1}" for i in range(len(new))] and new
    sizes = [entry["size"] for entry in whole[1]["categories"] if entry["kind"] == "new"]
    assert sizes == sorted(sizes, reverse=True)
