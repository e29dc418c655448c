"""Discoveries in small photographs: files, the truth that nothing sees, resuming, links, other options."""

import csv
import json
import os
import shutil

import photographs
import pytest
import small_runs
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from eagc_ops.discovery import discover
from eagc_ops.discovery.category_files import sort_into
from eagc_ops.discovery.encoding import Passes
from eagc_ops.discovery.frozen import FEATURES, Clustering, Features
from eagc_ops.discovery.prediction import predict
from eagc_ops.training.analysis.accuracy import accuracy
from eagc_ops.training.config import ConfigError
from eagc_ops.training.engine.checkpoint import load_checkpoint


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    home = tmp_path_factory.mktemp("photos")
    return home, photographs.write_photographs(home)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    files = small_runs.write_files(tmp_path_factory.mktemp("weights"))
    return {
        "backbone": "vit_digits",
        "image_size": 16,
        "weights": files["weights"],
        "device": "cpu",
        "precision": "no",
        "train": False,
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
    """As a spreadsheet writes it: with a mark of its encoding."""
    file.write_text(
        encoding="utf-8-sig",
        data="path,class\n" + "".join(f"{path},{kind}\n" for path, kind in truth.items()),
    )
    return file


@pytest.fixture(scope="module")
def whole(photos, settings, tmp_path_factory):
    """A discovery with an estimated K: (folder, content, lines, digests of the photographs before, after)."""
    output = tmp_path_factory.mktemp("whole") / "found"
    before = photographs.digest(photos[0])
    content, lines = made(photos, output, settings)
    return output, content, lines, before, photographs.digest(photos[0])


def test_nothing_of_the_users_is_changed(whole):
    assert whole[3] == whole[4]


def test_files_of_a_discovery(photos, whole):
    """They are those of docs/discover.md."""
    output, content, *_ = whole
    assert json.loads((output / "categories.json").read_text()) == content
    assert list(content) == [
        "version", "discovery", "labelled", "unlabelled", "backbone", "weights", "method", "eagc", "k",
        "k_estimated", "k_range", "k_text", "answer", "images", "empty", "warnings", "holdout", "rules",
        "map", "truth", "round", "changes", "categories",
    ]  # fmt: skip
    assert (content["version"], content["method"], content["round"]) == (2, None, 0)
    assert len(content["discovery"]) == 16 and int(content["discovery"], 16)
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
        assert entry["named"] is False
    statuses = [row["status"] for row in assigned]
    assert content["images"] == {
        "labelled": 18,
        "held_out": 6,
        "unlabelled": 30,
        "doubtful": statuses.count("doubtful"),
        "nowhere": statuses.count("nowhere"),
    }
    assert content["k_estimated"] and content["k_text"].startswith("K ")
    assert content["truth"] is None


def test_a_first_answer_says_what_it_is(whole):
    answer = whole[1]["answer"]
    assert (answer["kind"], answer["training"]) == ("first", "none")
    assert [candidate["kept"] for candidate in answer["candidates"]] == [True]
    assert whole[2].index(answer["sentence"]) < len(whole[2]) - 1


def test_the_right_categories_of_easy_photographs(photos, settings, tmp_path):
    """Five kinds that features tell apart: all images of a kind are together, known ones under their name."""
    content, _ = made(photos, tmp_path / "found", settings, k=5, truth=write_truth(tmp_path / "t", photos[1]))
    assert content["truth"] == {"all": 1.0, "old": 1.0, "new": 1.0}
    for row in rows(tmp_path / "found" / "assignments.csv"):
        kind = photos[1][row["path"]]
        assert row["category"] == kind if kind in photographs.KNOWN else row["category"].startswith("new-")
    assert content["empty"] == 0 and content["warnings"] == [] and content["k_range"] is None


def test_only_held_out_images_give_an_accuracy(photos, whole):
    """Without truth there is no All, Old and New."""
    _, content, lines, *_ = whole
    assert not any("All " in line for line in lines)
    assert content["holdout"] == {"images": 6, "right": 6, "accuracy": 1.0}
    assert [line for line in lines if line.startswith("accuracy")] == [
        "accuracy on known categories: 100 % (6 of 6 held-out images; 95 % confidence interval: 60 to 100 %)"
    ]


def test_held_out_images_are_not_fitted_to_and_are_scored_by_their_class(whole):
    output, content, *_ = whole
    listing = json.loads((output / "images.json").read_text())
    held = dict(listing["held_out"])
    used = {path for path, _ in listing["training"]} | {*listing["unlabelled_images"]}
    assert len(held) == 6 and not used & held.keys()
    _, predicted = predict(output, held)
    right = [row[1] == listing["classes"][c] for row, c in zip(predicted, held.values())]
    assert content["holdout"]["right"] == sum(right)


def test_what_it_decides_is_said_with_the_reason(whole):
    _, content, lines, *_ = whole
    assert lines[0].startswith("labelled: 18 images of 3 classes; 6 more are held out (20% of every class")
    assert lines[1] == "unlabelled: 30 images"
    assert lines[2].startswith("features of 54 images: about ") and lines[2].endswith("; then the first page")
    assert content["k_text"] in lines


def test_a_complete_discovery_is_written_again_from_its_features(photos, settings, whole, monkeypatch):
    output, content, *_ = whole
    before = {
        name: (output / name).read_bytes() for name in ("assignments.csv", "map.csv", "categories.json")
    }
    for name in before:
        (output / name).unlink()
    monkeypatch.setattr("eagc_ops.discovery.discovery.pretrained", None)  # encoding would fail
    monkeypatch.setattr("eagc_ops.discovery.answer_files.map_2d", None)  # and so would drawing the map
    again, lines = made(photos, output, settings)
    assert {**again, "answer": None} == {**content, "answer": None}
    assert lines[0] == f"continuing the discovery in {output}"
    assert {name: (output / name).read_bytes() for name in ("assignments.csv", "map.csv")} == {
        name: before[name] for name in ("assignments.csv", "map.csv")
    }


def test_another_number_needs_no_encoder(photos, settings, whole, tmp_path, monkeypatch):
    shutil.copytree(whole[0], tmp_path / "found")
    monkeypatch.setattr("eagc_ops.discovery.discovery.pretrained", None)
    content, _ = made(photos, tmp_path / "found", settings, k=7)
    assert (content["k"], content["k_estimated"], content["k_text"]) == (7, False, "K = 7 was given.")
    assert content["discovery"] != whole[1]["discovery"]
    content, _ = made(photos, tmp_path / "found", settings, k="6-7")
    assert content["k"] in (6, 7) and content["k_estimated"]


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (2, "k must be >= 3, the number of known classes, got 2"),
        ("2-9", "k must be >= 3, the number of known classes, got 2"),
        ("9-4", "k must be a number, a range such as 8-15, or estimate, got '9-4'"),
        ("1000", "k must be <= 48, the number of images, got 1,000"),
    ],
)
def test_a_number_that_cannot_be_is_refused_and_leaves_nothing(photos, settings, tmp_path, k, message):
    with pytest.raises(ConfigError, match=message):
        made(photos, tmp_path / "found", settings, k=k)
    assert not (tmp_path / "found").exists()


@pytest.fixture(scope="module")
def known_truth(photos, settings, tmp_path_factory):
    """The discovery with the truth, and with a permuted one: (folder, content, lines) of each."""
    home = tmp_path_factory.mktemp("truth")
    paths, kinds = list(photos[1]), list(photos[1].values())
    results = []
    for name, order in (("right", kinds), ("permuted", kinds[7:] + kinds[:7])):
        file = write_truth(home / f"{name}.csv", dict(zip(paths, order)))
        content, lines = made(photos, home / name, settings, truth=file, k=5)
        results.append((home / name, content, [line.replace(name, "") for line in lines]))
    return results


def test_the_truth_changes_nothing_but_the_accuracy(known_truth):
    (a, content, lines), (b, other, other_lines) = known_truth
    for name in ("answer.safetensors", "features.safetensors", "categories.safetensors"):
        (ours, _), (theirs, _) = load_checkpoint(a / name), load_checkpoint(b / name)
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    for name in ("assignments.csv", "map.csv", "images.json"):
        assert (a / name).read_bytes() == (b / name).read_bytes()
    assert content.pop("truth") != other.pop("truth")
    assert {**content, "answer": None} == {**other, "answer": None}
    pairs = [pair for pair in zip(lines, other_lines) if not pair[0].startswith("features of")]  # with a time
    different = [pair for pair in pairs if pair[0] != pair[1]]
    assert len(lines) == len(other_lines) and len(different) == 1
    assert different[0][0].startswith("compared with ")


def test_the_accuracy_with_the_truth(photos, known_truth):
    output = known_truth[1][0]
    content = json.loads((output / "categories.json").read_text())
    kinds = list(photos[1].values())
    truth = dict(zip(photos[1], kinds[7:] + kinds[:7]))
    assigned = rows(output / "assignments.csv")
    number = {name: i for i, name in enumerate((*photographs.KNOWN, "new-1", "new-2"))}
    found = torch.tensor([number[row["category"]] for row in assigned])
    expected = torch.tensor([photographs.KINDS.index(truth[row["path"]]) for row in assigned])
    assert content["truth"] == accuracy(found, expected, 3)._asdict()


def test_a_truth_that_lacks_images_is_refused_before_features(photos, settings, tmp_path):
    (path, _), *others = photos[1].items()
    file = write_truth(tmp_path / "truth.csv", dict(others))
    with pytest.raises(
        ValueError, match=f"truth .* has no class for 1 of 30 unlabelled images, the first is {path}"
    ):
        made(photos, tmp_path / "found", settings, truth=file)
    file.write_text("file,label\n")
    with pytest.raises(ValueError, match=r"truth .*truth\.csv must begin with the line path,class"):
        made(photos, tmp_path / "found", settings, truth=file)
    assert not (tmp_path / "found").exists()


def test_interrupted_features_go_on_where_they_stopped(photos, settings, whole, tmp_path, monkeypatch):
    """With the images that were listed: new photographs do not disturb it, and no image is encoded twice."""
    home = tmp_path / "photos"
    shutil.copytree(photos[0], home)
    passes = Passes.__call__

    def interrupted(self, paths, batch=10):
        for i, part in enumerate(passes(self, paths, batch)):
            if len(paths) > 10 and i == 2:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(Passes, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made((home,), tmp_path / "found", settings)
    monkeypatch.setattr(Passes, "__call__", passes)
    assert (tmp_path / "found" / "features.rows").stat().st_size == 4 * 96 * 20
    with open(tmp_path / "found" / "features.rows", "ab") as file:
        file.write(b"half")  # of a row, as a kill leaves it
    shutil.copy(next((home / "new").rglob("*.png")), home / "new" / "late.png")
    encoded = []
    monkeypatch.setattr(
        Passes,
        "__call__",
        lambda self, paths, *more: encoded.append(len(paths)) or passes(self, paths, *more),
    )
    content, lines = made((home,), tmp_path / "found", settings)
    assert lines[0] == f"continuing the discovery in {tmp_path / 'found'}"
    assert content["images"]["unlabelled"] == 30 and max(encoded) == 34
    assert not (tmp_path / "found" / "features.rows").exists()
    ours, theirs = (Features.read(folder / FEATURES) for folder in (tmp_path / "found", whole[0]))
    torch.testing.assert_close(ours.rows, theirs.rows)


def test_a_folder_with_another_discovery_is_refused(photos, settings, whole, tmp_path):
    output = whole[0]
    with pytest.raises(
        ConfigError, match="holds a discovery of other folders or options: choose a different"
    ):
        made(photos, output, settings, holdout=0.5)
    with pytest.raises(ConfigError, match=r"image_size cannot change: output .* has features with"):
        made(photos, output, {**settings, "image_size": 32})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"output .*full is not an empty folder"):
        made(photos, tmp_path / "full", settings)


def test_a_refined_answer_is_not_overwritten(photos, settings, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "found")
    kept = Clustering.read(whole[0])
    Clustering(**{**vars(kept), "kind": "refined"}).write(tmp_path / "found" / "answer.safetensors")
    with pytest.raises(ConfigError, match="holds an answer that was corrected by hand"):
        made(photos, tmp_path / "found", settings)


def test_other_weights_are_refused(photos, settings, whole, tmp_path):
    other = small_runs.write_files(tmp_path / "other")["weights"]
    tensors = {name: value + 0.01 for name, value in load_file(other).items()}
    save_file(tensors, other)
    with pytest.raises(ConfigError, match="was made with different weights of vit_digits"):
        made(photos, whole[0], {**settings, "weights": other})
    with pytest.raises(ConfigError, match="was made with different weights of vit_digits"):
        predict(whole[0], [next(iter(photos[1]))], weights=other)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backbone": "vit_digit"}, "backbone 'vit_digit' is unknown"),
        ({"backbone": "resnet_of_mine:factory"}, "cannot be imported"),
        ({"weights": "/none/there.pth"}, "weights /none/there.pth"),
    ],
)
def test_a_wrong_encoder_leaves_nothing_behind(photos, settings, tmp_path, wrong, message):
    with pytest.raises((ValueError, OSError), match=message):
        made(photos, tmp_path / "deep" / "found", {**settings, **wrong})
    assert not (tmp_path / "deep").exists()


def test_the_wrong_folder_is_reported_before_missing_weights(photos, settings, tmp_path):
    (tmp_path / "labelled" / "one").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "labelled" / "one" / "a.png")
    with pytest.raises(ValueError, match="has one class folder, one"):
        discover(
            tmp_path / "labelled", photos[0] / "new", tmp_path / "found",
            **{**settings, "weights": "/none/there.pth"},
        )  # fmt: skip


def test_photographs_are_seen_upright(photos, settings, whole, tmp_path):
    """A file stored sideways, with a note how the camera was held, has the place of the upright one."""
    path = sorted(photos[1])[0]
    with Image.open(path) as image:
        exif = Image.Exif()
        exif[0x0112] = 6
        image.convert("RGB").transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
        image.convert("RGB").transpose(Image.Transpose.ROTATE_90).save(tmp_path / "lying.png")
    _, (upright, turned, lying) = predict(whole[0], [path, tmp_path / "turned.png", tmp_path / "lying.png"])
    assert turned[1:] == upright[1:] != lying[1:]


def test_random_weights_are_said_aloud(photos, settings, tmp_path):
    content, lines = made(photos, tmp_path / "found", {**settings, "weights": "random"}, k=5)
    (said,) = [line for line in lines if "random weights" in line]
    assert said.startswith("warning: ") and content["weights"] == "random"


def test_features_that_tell_nothing_are_said_aloud(photos, settings, tmp_path):
    """Images of one class folder are spread over all: nothing can be learnt, and the page says it."""
    home = tmp_path / "photos"
    shutil.copytree(photos[0] / "new", home / "new")
    for i in range(24):
        pixels = torch.randint(0, 256, (20, 20, 3), generator=torch.Generator().manual_seed(i))
        place = home / "labelled" / "abc"[i % 3] / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.to(torch.uint8).numpy()).save(place)
    content, _ = made((home,), tmp_path / "found", settings, k=5)
    (said,) = content["warnings"]
    assert said.startswith("The features hardly tell your own categories apart")


def test_an_encoder_that_does_not_look_leaves_nothing_behind(photos, settings, tmp_path):
    weights = load_file(settings["weights"])
    blind = {name: value * ("patch_embed" not in name) for name, value in weights.items()}
    save_file(blind, tmp_path / "blind.safetensors")
    with pytest.raises(ConfigError, match="gives all 54 images the same features"):
        made(photos, tmp_path / "found", {**settings, "weights": str(tmp_path / "blind.safetensors")})
    assert not list((tmp_path / "found").iterdir())


def test_images_of_classes_that_play_novel_are_listed_last(photos, settings, tmp_path, monkeypatch):
    monkeypatch.setattr("eagc_ops.discovery.discovery.hidden_classes", lambda known: [0])
    made(photos, tmp_path / "found", settings, k=5)
    listing = json.loads((tmp_path / "found" / "images.json").read_text())
    assert [c for _, c in listing["training"]] == [1] * 6 + [2] * 6 + [0] * 6


def test_output_inside_of_the_photographs_is_refused(photos, settings):
    for place in ("new", "new/2024/found", "labelled/found"):
        with pytest.raises(ValueError, match=r"output .* lies inside of your images"):
            made(photos, photos[0] / place, settings)


def test_links_by_category(photos, settings, whole, tmp_path):
    output = whole[0]
    (tmp_path / "links").mkdir()
    for _ in range(2):  # the second time, the links of the first are replaced
        made(photos, output, settings, sort_into=tmp_path / "links")
        links = {str(link): os.readlink(link) for link in (tmp_path / "links").glob("*/*")}
        assert {(os.path.basename(os.path.dirname(link)), target) for link, target in links.items()} == {
            (row["category"], row["path"]) for row in rows(output / "assignments.csv")
        }
        assert all(os.path.islink(link) for link in links)
    (tmp_path / "links" / "mine").mkdir()
    (tmp_path / "links" / "mine" / "note.txt").write_text("x")
    made(photos, output, settings, sort_into=tmp_path / "links")
    assert (tmp_path / "links" / "mine" / "note.txt").exists()
    for place, message in (
        (tmp_path, "sort_into .* is not empty, and was not made for links"),
        (photos[0] / "new" / "links", "sort_into .* lies inside of your images"),
    ):
        with pytest.raises(ValueError, match=message):
            made(photos, output, settings, sort_into=place)
    assert photographs.digest(photos[0]) == whole[3]


def test_long_names_and_odd_ones_are_sorted(tmp_path):
    """File systems allow 255 bytes: 86 characters of Chinese are more."""
    paths = []
    for folder in ("a", "b"):
        paths.append(tmp_path / folder / f"{'x' * 251}.png")
        paths[-1].parent.mkdir()
        paths[-1].write_text(folder)
    names = ["猫" * 100, "猫" * 100 + "!", "con"]
    for _ in range(2):  # again, over what was there
        sort_into(tmp_path / "links", [(str(path), name) for name in names for path in paths])
        made = {
            folder.name: sorted(folder.iterdir())
            for folder in (tmp_path / "links").iterdir()
            if folder.is_dir()
        }
        assert sorted(made) == ["_con", "猫" * 66, "猫" * 66 + "-2"]
        assert all({link.read_text() for link in links} == {"a", "b"} for links in made.values())


def test_images_of_the_same_name_have_links_of_their_own(tmp_path):
    paths = [str(tmp_path / folder / "a.png") for folder in ("x", "y", "z")]
    sort_into(tmp_path / "links", [(path, "bee") for path in paths])
    found = sorted((link.name, os.readlink(link)) for link in (tmp_path / "links" / "bee").iterdir())
    assert found == [("a-2.png", paths[1]), ("a-3.png", paths[2]), ("a.png", paths[0])]


def test_the_python_example_names_the_new_categories(whole):
    new = [entry["name"] for entry in whole[1]["categories"] if entry["kind"] == "new"]
    assert new == [f"new-{i + 1}" for i in range(len(new))] and new
    sizes = [entry["size"] for entry in whole[1]["categories"] if entry["kind"] == "new"]
    assert sizes == sorted(sizes, reverse=True)
