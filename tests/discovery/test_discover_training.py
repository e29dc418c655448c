"""Discoveries that train after the first answer: what is compared, what is kept, and what a stop leaves."""

import csv
import json
import shutil

import photographs
import pytest
import small_runs
import torch
from small_runs import SmallHead  # noqa: F401  (registers the small methods)

from eagc_ops.discovery import answers, discover
from eagc_ops.discovery.beginning import Beginning
from eagc_ops.discovery.prediction import export, predict
from eagc_ops.training import runs
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.loop import Callback, Loop

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below", "ignore:K = ")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    home = tmp_path_factory.mktemp("photos")
    photographs.write_photographs(home)
    return home


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    files = small_runs.write_files(tmp_path_factory.mktemp("weights"))
    return {
        **{"method": "small", "backbone": "vit_digits", "image_size": 16, "weights": files["weights"]},
        **{"epochs": 2, "batch_size": 12, "reference_epochs": 1, "device": "cpu", "k": 5},
        "precision": "no",
        **{"backbone_lr": 0.01, "head_lr": 0.01, "lr_floor": 0.1},
    }


def made(photos, output, settings, **options):
    lines = []
    content = discover(
        photos / "labelled", photos / "new", output, say=lines.append, train=True, **settings, **options
    )
    return content, lines


@pytest.fixture(scope="module")
def trained(photos, settings, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "found"
    return output, *made(photos, output, settings)


def rows(file):
    with open(file, newline="") as opened:
        return [tuple(row) for row in csv.reader(opened)]


def test_all_candidates_are_told_and_one_is_kept(trained):
    output, content, lines = trained
    answer = content["answer"]
    assert answer["training"] == "done" and answer["sentence"] in lines
    assert [entry["kind"] for entry in answer["candidates"]] == ["first", "trained", "trained-metric"]
    (kept,) = [entry for entry in answer["candidates"] if entry["kept"]]
    assert kept["kind"] == answer["kind"]
    for entry in answer["candidates"]:
        assert entry["holdout"]["images"] == entry["rehearsal"]["images"] == 6
        assert entry["score"] is not None
    assert not (output / "trunk-cache").exists()
    first_page = next(line for line in lines if line.startswith("page: "))
    assert lines.index(first_page) < lines.index(
        next(line for line in lines if line.startswith("training: "))
    )


def test_training_starts_from_the_first_answer(photos, settings, tmp_path, monkeypatch):
    """Before the first step, the classifier finds the categories of the first answer."""
    seen = []

    def stop(self, bar):
        z = self.experiment.features.unlabelled()[0]
        seen.append(self.student.method.scores(z, {}).argmax(1))
        raise FloatingPointError("enough")

    monkeypatch.setattr(Loop, "_train_epoch", stop)
    content, _ = made(photos, tmp_path / "found", settings)
    names = [entry["name"] for entry in content["categories"]]
    first = [names.index(row[1]) for row in rows(tmp_path / "found" / "assignments.csv")[1:]]
    pairs = set(zip(seen[0].tolist(), first))
    assert len(pairs) == len({prototype for prototype, _ in pairs}) == 5
    assert content["answer"]["training"] == "stopped"


def test_a_training_that_diverges_leaves_the_first_answer(photos, settings, tmp_path, monkeypatch):
    def diverge(self, bar):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(Loop, "_train_epoch", diverge)
    content, lines = made(photos, tmp_path / "found", settings)
    assert (content["answer"]["kind"], content["answer"]["training"]) == ("first", "stopped")
    assert "training stopped: the loss is nan" in lines
    assert content["answer"]["sentence"].startswith(
        "Kept: the first answer, because training ended without a result"
    )


@pytest.mark.parametrize("kind", ["trained", "trained-metric"])
def test_predictions_are_those_of_the_kept_answer(trained, photos, settings, tmp_path, monkeypatch, kind):
    """Both ways to place images by a trained network, whichever of them the rule keeps here."""
    shutil.copytree(trained[0], tmp_path / "found")
    monkeypatch.setattr(
        "eagc_ops.discovery.discovery.keep",
        lambda candidates: next(one for one in candidates if one.kind == kind),
    )
    monkeypatch.setattr(Loop, "fit", None)  # nothing is trained again
    content, lines = made(photos, tmp_path / "found", settings)
    assert content["answer"]["kind"] == kind and content["method"] == "small" and content["eagc"] is True
    assert lines[0].startswith("continuing") and "training is done already" in lines[1]
    expected = rows(tmp_path / "found" / "assignments.csv")
    header, found = predict(tmp_path / "found", [photos / "new"])
    assert header == expected[0]
    assert [row[:3] for row in found] == [row[:3] for row in expected[1:]]
    for ours, theirs in zip(found, expected[1:]):
        assert [float(x) for x in ours[3:6]] == pytest.approx([float(x) for x in theirs[3:6]], abs=3e-4)
    export(tmp_path / "found", tmp_path / "model.pt2")
    extra = {"eagc.json": ""}
    network = torch.export.load(str(tmp_path / "model.pt2"), extra_files=extra).module()
    assert network(torch.zeros(3, 3, 16, 16)).shape == (3, 5)
    assert json.loads(extra["eagc.json"])["names"][:3] == list(photographs.KNOWN)


def test_other_settings_of_a_training_are_refused(trained, photos, settings):
    with pytest.raises(ConfigError, match="holds a training with other settings"):
        made(photos, trained[0], {**settings, "epochs": 3})


class Stop(Callback):
    def after_update(self, loop, rows):
        if loop.epoch == 1:
            raise KeyboardInterrupt


def test_a_stop_leaves_the_first_answer_and_goes_on(trained, photos, settings, tmp_path, monkeypatch):
    fit = runs._fit
    monkeypatch.setattr(runs, "_fit", lambda e, f, c, say, begin: fit(e, f, [*c, Stop()], say, begin))
    lines, output = [], tmp_path / "found"
    with pytest.raises(KeyboardInterrupt):
        discover(photos / "labelled", photos / "new", output, say=lines.append, train=True, **settings)
    assert lines[-1] == f"the first answer stays: {output / 'discovered.html'}"
    content = json.loads((output / "categories.json").read_text())
    assert (content["answer"]["kind"], content["answer"]["training"]) == ("first", "to come")
    monkeypatch.setattr(runs, "_fit", fit)
    again, _ = made(photos, output, settings)
    theirs = trained[1]["answer"]["candidates"]
    for ours, other in zip(again["answer"]["candidates"], theirs):
        assert {**ours, "seconds": 0} == {**other, "seconds": 0}


def test_a_page_that_was_corrected_meanwhile_stays(trained, photos, settings, tmp_path):
    """Who began to name categories while it trained does not lose that; without the edits, it is written."""
    output = tmp_path / "found"
    shutil.copytree(trained[0], output)
    found = json.loads((output / "categories.json").read_text())
    edits = {"version": 1, "discovery": found["discovery"], "names": {"new-1": "heron"}}
    (output / "edits.json").write_text(json.dumps(edits))
    (output / "discovered.html").write_text("the page that was corrected")
    content, lines = made(photos, output, settings)
    assert content == found
    assert lines[-1].startswith("the page stays as it is") and f"eagc refine {output}" in lines[-1]
    assert (output / "discovered.html").read_text() == "the page that was corrected"
    (output / "edits.json").write_text(json.dumps({**edits, "names": {}}))
    _, lines = made(photos, output, settings)
    assert not any("the page stays" in line for line in lines)
    assert "<h1" in (output / "discovered.html").read_text()


def test_the_candidates_alone_for_a_benchmark(trained, photos, settings, tmp_path):
    """The same answers as of a discovery, without a page."""
    found, kept = answers(
        photos / "labelled", photos / "new", tmp_path / "found", say=lambda _: None, train=False, **settings
    )
    assert [one.kind for one in found] == ["first"] and kept is found[0]
    assert len(found[0].assignment) == 30
    assert not (tmp_path / "found" / "discovered.html").exists()


def test_training_is_the_default_where_it_can_be_compared(photos, settings, tmp_path):
    lines = []
    places = photos / "labelled", photos / "new"
    content = discover(*places, tmp_path / "found", say=lines.append, **settings)
    assert content["answer"]["training"] == "done"
    content = discover(*places, tmp_path / "none", say=lines.append, holdout=0, **settings)
    assert content["answer"]["training"] == "none"
    assert "Nothing is trained, because nothing could tell" in content["answer"]["sentence"]


@pytest.mark.parametrize("fast", ["bf16", "no"])
def test_the_precision_is_the_fast_one_of_the_device(photos, settings, tmp_path, monkeypatch, fast):
    monkeypatch.setattr("eagc_ops.discovery.discovery.fast_precision", lambda device: fast)
    places = photos / "labelled", photos / "new", tmp_path / "found"
    options = {name: value for name, value in settings.items() if name != "precision"}
    discover(*places, train=False, say=lambda _: None, **options)
    assert Beginning.read(tmp_path / "found").config.precision == fast
    discover(*places, train=False, say=lambda _: None, **options)  # again: as it was begun
    assert Beginning.read(tmp_path / "found").config.precision == fast


def test_predictions_in_mixed_precision_are_those_of_the_answer(photos, settings, tmp_path):
    """Only the encoder computes in 16 bits: an image is the nearest one of itself."""
    places = photos / "labelled", photos / "new", tmp_path / "found"
    discover(*places, train=False, say=lambda _: None, **{**settings, "precision": "bf16"})
    expected = rows(tmp_path / "found" / "assignments.csv")
    _, found = predict(tmp_path / "found", [photos / "new"])
    assert [row[:3] for row in found] == [row[:3] for row in expected[1:]]
    for ours, theirs in zip(found, expected[1:]):
        assert [float(x) for x in ours[3:6]] == pytest.approx([float(x) for x in theirs[3:6]], abs=0.02)
