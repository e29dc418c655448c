"""`eagc pretrain`: encoders of small images, with labels of other classes and without."""

import json
import shlex

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from eagc_ops.evidence.commands.pretrain import main
from eagc_ops.training.models.backbones import load_backbone


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    """A folder of grey files: five classes of ten digits each."""
    root, digits = tmp_path_factory.mktemp("drawings"), load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    for c in range(5):
        (root / f"digit{c}").mkdir()
        for i in np.flatnonzero(digits.target == c)[:10]:
            Image.fromarray(pixels[i]).save(root / f"digit{c}" / f"{i}.png")
    return root


def pretrained(capsys, file, *words):
    code = main(["--dataset", "folder", "--image-size", "16", *map(str, words), "-o", str(file)])
    return code, *capsys.readouterr()


@pytest.mark.parametrize("labels", [False, True])
def test_an_encoder_of_a_folder_of_grey_files(drawings, tmp_path, capsys, labels):
    """50 images are fewer than a batch: it must learn all the same."""
    file, words = tmp_path / "w.safetensors", ["--labels"] * labels
    code, out, _ = pretrained(capsys, file, "--root", drawings, "--channels", 1, "--epochs", 2, *words)
    assert code == 0
    record = json.loads(file.with_suffix(".json").read_text())
    assert record["learned from"] == ("labels of other classes" if labels else "images without labels")
    assert (record["images"], record["channels"], record["root"]) == (50, 1, None)
    quality = record["k-NN"]["5 classes"]
    assert f"5-NN accuracy of 5 classes: {quality['accuracy']:.1%} (raw pixels " in out
    learned = load_backbone("vit_glyphs", file, image_size=16, channels=1).state_dict()
    pretrained(capsys, tmp_path / "v.safetensors", "--root", drawings, "--channels", 1, "--epochs", 1, *words)
    before = load_backbone("vit_glyphs", tmp_path / "v.safetensors", image_size=16, channels=1).state_dict()
    assert not torch.equal(learned["blocks.0.mlp.fc1.weight"], before["blocks.0.mlp.fc1.weight"])
    # The command that it names opens this encoder, once FOLDER and FILE are filled in.
    hint = shlex.split(out.splitlines()[-1].split("(")[1].rstrip(")"))
    assert hint[:4] == ["eagc", "train", "--dataset", "folder"]
    assert hint[4:8] == ["--root", "FOLDER", "--split-file", "FILE"]
    assert hint[8:] == [
        "--image-size",
        "16",
        "--channels",
        "1",
        *["--backbone", "vit_glyphs"],
        *["--weights", str(file)],
    ]


def test_too_little_to_learn_from_is_refused(drawings, tmp_path, capsys):
    few = tmp_path / "few" / "digit0"
    few.mkdir(parents=True)
    files = sorted((drawings / "digit0").iterdir())
    for file in files[:5]:
        (few / file.name).write_bytes(file.read_bytes())
    code, _, err = pretrained(capsys, tmp_path / "w.safetensors", "--root", few.parent)
    assert code == 2
    assert f"--root {few.parent} has 5 images: 6 are needed at least" in err
    (few / files[5].name).write_bytes(files[5].read_bytes())
    code, _, err = pretrained(capsys, tmp_path / "w.safetensors", "--root", few.parent, "--labels")
    assert code == 2
    assert f"--root {few.parent} has one class, whose labels tell nothing apart" in err
    code, out, _ = pretrained(capsys, tmp_path / "w.safetensors", "--root", few.parent, "--epochs", 1)
    assert code == 0
    assert "accuracy" not in out  # of one class
