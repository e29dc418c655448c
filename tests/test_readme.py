"""The README: its code runs as printed, the tests it names exist (figures: bench/test_figures.py)."""

import re
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Fenced blocks, also inside list items."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", README, re.MULTILINE | re.DOTALL)
    return ["\n".join(line[len(indent) :] for line in body.splitlines()) for indent, body in found]


def test_code_runs_as_printed():
    torch.manual_seed(0)
    namespace = {
        "labelled_features": torch.randn(100, 16),
        "z": torch.randn(64, 16, requires_grad=True),
        "z_ref": torch.randn(64, 16),
        "mask": torch.arange(64) % 2 == 0,
    }
    code = blocks("python")
    assert len(code) >= 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, block in enumerate(code):
            exec(compile(block, f"README block {number}", "exec"), namespace)
            if "loss_scale" in block:
                assert torch.equal(namespace["z"], namespace["encoder"](namespace["images"]))
    from eagc_ops.training.methods import METHODS

    assert METHODS.pop("mine") is namespace["Mine"]  # the fifth method; other tests have the four
    assert namespace["encoder"].weight.grad is not None
    assert namespace["z_ref"][1].isnan().all()  # of the ViT: labelled rows only


def test_every_guarantee_names_a_test_that_exists():
    named = re.findall(r"`(tests/[a-z_/]+\.py)((?:::\w+)+)`", README)
    assert len(named) >= 15
    for path, names in named:
        source = (ROOT / path).read_text()
        for name in names.split("::")[1:]:
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), f"{path} has no {name}"


def test_every_make_target_named_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)`", README)) | set(
        re.findall(r"^make ([a-z-]+)", README, re.MULTILINE)
    ):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
