"""Trained runs on other images: the rows of the end of training, for every method; and exported networks."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small_runs import small_config

from eagc_ops.discovery.category_files import csv_text
from eagc_ops.discovery.prediction import export, find_images, predict
from eagc_ops.discovery.predictor import run_predictor
from eagc_ops.training import runs
from eagc_ops.training.data import open_data
from eagc_ops.training.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")

SETTINGS = {
    "small": {},
    "small_legogcd": {},
    "small_sptnet": {
        **{"phase_batches": 2, "pad_width": 2, "prompt_std": 0.1},
        **{"prompt_lr": 0.01, "backbone_lr": 0.01, "head_lr": 0.01},
    },
    "small_selex": {"embedding_dim": 32},
}


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """method -> (folder, clusters of the unlabelled images at the end of training)."""
    home, found = tmp_path_factory.mktemp("runs"), {}
    for method, settings in SETTINGS.items():
        if method == "small_sptnet":
            settings = {**settings, "init": str(home / "small")}
        at_the_end = []
        config = small_config(data, method, epochs=1, reference_epochs=1, headline="last", **settings)
        with pytest.MonkeyPatch.context() as patch:
            original = METHODS[method].predict
            patch.setattr(
                METHODS[method],
                "predict",
                lambda self, features, original=original, kept=at_the_end: (
                    kept.append(original(self, features)) or kept[-1]
                ),
            )
            runs.train(config, home / method)
        found[method] = home / method, at_the_end[-1]
    return found


@pytest.fixture(scope="module")
def unlabelled(data):
    """Paths of the unlabelled images, in order."""
    opened = open_data("folder", data["root"], split_file=data["split_file"])
    return [opened.unlabelled.images.source[i] for i in opened.unlabelled.uq_idx]


NAMES = ("class3", "class0", "class4", "new-1", "new-2")  # known classes in the order of the split


@pytest.mark.parametrize("method", SETTINGS)
def test_the_same_rows_as_at_the_end_of_training(trained, unlabelled, method):
    folder, clusters = trained[method]
    header, rows = predict(folder, unlabelled)
    assert header == ("path", "category", "kind", "confidence", "margin")
    assert [row[0] for row in rows] == unlabelled
    assert [row[1] for row in rows] == [NAMES[k] for k in clusters.tolist()]
    assert [row[2] for row in rows] == ["known" if k < 3 else "new" for k in clusters.tolist()]
    assert len(clusters.unique()) > 1


@pytest.mark.parametrize("method", SETTINGS)
def test_rows_do_not_depend_on_the_batch(trained, unlabelled, method):
    folder, _ = trained[method]
    _, rows = predict(folder, unlabelled)
    _, alone = predict(folder, unlabelled[7:8])
    assert alone[0][:3] == rows[7][:3]
    for ours, theirs in zip(alone[0][3:], rows[7][3:]):
        assert float(ours) == pytest.approx(float(theirs), abs=2e-4)


@pytest.mark.parametrize("method", ["small", "small_sptnet"])
def test_confidence_and_margin_are_those_of_the_classifier(trained, unlabelled, method):
    """With the prompts of SPTNet, without which they would be others."""
    predictor = run_predictor(trained[method][0])
    heads, encoder = predictor.network.method, predictor.network.encoder
    images = torch.stack([predictor.transform(Image.open(path).convert("RGB")) for path in unlabelled])

    def expected(images):
        logits = heads(encoder.student(encoder.trunk(images)))[0] / heads.config.student_temp
        first, second = logits.softmax(1).topk(2, 1).values.T
        return torch.stack([first, first - second], 1)

    _, rows = predict(trained[method][0], unlabelled)
    found = torch.tensor([[float(value) for value in row[3:]] for row in rows])
    prompted = heads.prompts(images) if method == "small_sptnet" else images
    torch.testing.assert_close(found, expected(prompted), atol=2e-4, rtol=0)
    assert method == "small" or (found - expected(images)).abs().max() > 2e-3


def test_selex_needs_its_images_once(trained, unlabelled, data, tmp_path, monkeypatch):
    """Centers are kept in the run: the images may be gone, and nothing is clustered again."""
    folder, _ = trained["small_selex"]
    _, rows = predict(folder, unlabelled)
    assert (folder / "scores.safetensors").exists()
    monkeypatch.setattr("eagc_ops.discovery.predictor.Experiment", None)
    assert predict(folder, unlabelled)[1] == rows


def test_images_by_file_folder_and_list(unlabelled, tmp_path, monkeypatch):
    file = unlabelled[3]
    (tmp_path / "list.txt").write_text(f"{os.path.relpath(file, tmp_path)}\n\n{unlabelled[0]}\n")
    assert find_images([f"@{tmp_path / 'list.txt'}", file]) == [file, unlabelled[0], file]
    monkeypatch.chdir(os.path.dirname(os.path.dirname(file)))
    inside = find_images([os.path.basename(os.path.dirname(file))])
    assert inside == sorted(path.path for path in os.scandir(os.path.dirname(file)))
    with pytest.raises(ValueError, match=r"images: 1 files do not exist, the first is .*gone\.png"):
        find_images([tmp_path / "gone.png"])
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "broken.png").symlink_to("nowhere.png")  # as a discovery, it may be left out
    assert find_images([tmp_path / "album"]) == [str(tmp_path / "album" / "broken.png")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="the folder has no images"):
        find_images([tmp_path / "empty"])


def test_images_that_cannot_be_read(trained, unlabelled, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(OSError, match=r"1 of 2 images cannot be read: .*bad\.png \(not an image"):
        predict(trained["small"][0], [tmp_path / "bad.png", unlabelled[0]])
    _, rows = predict(trained["small"][0], [tmp_path / "bad.png", unlabelled[0]], skip_unreadable=True)
    assert [row[0] for row in rows] == [unlabelled[0]]


def test_any_size_and_mode_of_image(trained, tmp_path):
    for mode, size in (("L", (30, 50)), ("RGBA", (16, 16)), ("CMYK", (200, 9))):
        Image.new(mode, size).save(tmp_path / f"{mode}.tiff")
    assert len(predict(trained["small"][0], [tmp_path])[1]) == 3


def test_other_weights_are_refused(trained, unlabelled, data, tmp_path):
    tensors = load_file(data["weights"])
    save_file({name: value + 0.01 for name, value in tensors.items()}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="was trained on different weights of vit_digits: pass weights"):
        predict(trained["small"][0], unlabelled[:1], weights=str(tmp_path / "other.safetensors"))


RELOAD = """
import json, sys, torch
for file in sys.argv[2:]:
    extra = {"eagc.json": ""}
    network = torch.export.load(file, extra_files=extra).module()
    assert "eagc_ops" not in sys.modules
    images = torch.load(sys.argv[1])
    scores = [network(images[:count]) for count in (1, 2, len(images))]
    torch.save(scores, file + ".scores")
    print(json.dumps(json.loads(extra["eagc.json"])))
"""


def test_exported_networks_in_a_process_without_this_package(trained, unlabelled, tmp_path):
    """The same scores for batches of any size; by the facts in the file, these are the rows of `predict`."""
    methods = ("small_sptnet", "small_selex")  # SimGCD's scores with prompts, and distances to clusters
    images = torch.stack(
        [
            run_predictor(trained["small"][0]).transform(Image.open(path).convert("RGB"))
            for path in unlabelled[:5]
        ]
    )
    torch.save(images, tmp_path / "images.pt")
    files = [str(tmp_path / f"{method}.pt2") for method in methods]
    for method, file in zip(methods, files):
        export(trained[method][0], file)
    command = [sys.executable, "-c", RELOAD, str(tmp_path / "images.pt"), *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for method, file, line in zip(methods, files, done.stdout.splitlines()):
        with torch.no_grad():
            expected = run_predictor(trained[method][0]).network(images)
        assert expected.shape == (5, 5)
        every = torch.load(f"{file}.scores")
        for count, scores in zip((1, 2, 5), every):
            torch.testing.assert_close(scores, expected[:count], atol=1e-5, rtol=1e-5)
        facts = json.loads(line)
        assert (facts["method"], facts["names"], facts["input"]) == (method, list(NAMES), [None, 3, 16, 16])
        assert facts["mean"] == [0.485, 0.456, 0.406]
        best = (every[2] / facts["temperature"]).softmax(1).max(1)
        for row, k, confidence in zip(
            predict(trained[method][0], unlabelled[:5])[1], best.indices, best.values
        ):
            assert row[1] == facts["names"][k]
            assert float(row[3]) == pytest.approx(float(confidence), abs=1e-4)


def test_a_table_survives_names_that_are_no_text(trained, unlabelled, tmp_path):
    name = os.fsdecode(b'caf\xe9, "x".png')
    shutil.copy(unlabelled[0], tmp_path / name)
    table = csv_text(*predict(trained["small"][0], [tmp_path]))
    (tmp_path / "table.csv").write_bytes(table)
    with open(tmp_path / "table.csv", encoding="utf-8", errors="surrogateescape", newline="") as opened:
        (row,) = csv.DictReader(opened)
    assert row["path"] == str(tmp_path / name)
