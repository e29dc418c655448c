"""README and docs/: code runs as printed, commands parse, links and names resolve."""

import os
import re
import shlex
import subprocess
import sys

import layouts
import pytest
from compiled import MISSING
from documents import PAGES, ROOT, blocks, pages_with

from eagc_ops.app import cli

# Facts about the variables of a page after all of its blocks ran.
FACTS = {
    "README.md": """
        assert loss.isfinite() and encoder.weight.grad is not None
        assert torch.equal(z, encoder(images)), "the operator is the identity"
        assert reference.weight.grad is None
    """,
    "docs/index.md": "assert z.shape == (64, 16)",
    "docs/operator.md": """
        assert encoder.weight.grad is not None
        assert z_ref[1].isnan().all() and not z_ref[0].isnan().any(), "labelled rows only"
        assert running.last_tau[~mask].isfinite().all() and running.energy_ref != subspace.energy_ref
        assert soft.dim == hard.dim == 16
    """,
    "docs/official-code.md": """
        assert scaler.get_scale() > 1 and token.item() == 0
        assert mask.shape == (128,) and reference.weight.grad is not None
    """,
    "docs/diagnostics.md": """
        assert abs(diagnostics.gradient_deviation(*gradients)) < 1e-5
        found = (h * without).var(), ((h + lambda_a) * with_aga).var(), (h * with_aga).var()
        assert [round(x.item(), 3) for x in found] == [0.026, 0.044, 0.015]
    """,
    "docs/probe.md": "assert found.best.at_all.auc > 0.9 and 'EEP will act' in found.verdict",
    "docs/ptx.md": """
        assert (report.counts()["add.f32"], report.traffic()["ld.global"]) == (32, 8000)
        (violation,) = map(str, careless[0].violations)
        assert "byte 4000 of 4000 of argument 0 (x_ptr)" in violation and "12 x" in violation
    """,
    "docs/walk.md": """
        assert len(list(Path("labelled").glob("*/*.png"))) == 50 == len(truth) - 1
        assert {file.parent.name for file in Path("labelled").glob("*/*.png")} == set(names[:5])
        from PIL import Image
        assert images.image(6).tobytes() == Image.open("unlabelled/00006.png").tobytes()
    """,
    "docs/cifar10.md": """
        assert len(list(Path("photos").glob("*/*.png"))) == 100 == len(images.targets)
        assert {folder.name for folder in Path("photos").iterdir()} == set(names)
        assert json.loads(Path("split.json").read_text())["known_classes"] == names[:5]
    """,
    "docs/extending.md": """
        import torch
        from eagc_ops.training.methods import METHODS, Problem
        from eagc_ops.training.config import resolve
        assert METHODS["mine"] is Mine
        mine = Mine(resolve("mine", "digits", "paper"), Problem(dim=8, known=2, classes=4, images=16))
        assert mine(torch.randn(6, 8))[0].shape == (6, 4)
        from eagc_ops.staged_encoder import Stages
        assert Stages(small(32, 1).stages, image_size=32, channels=1).embed_dim == 32
    """,
}

# What a page has downloaded before its code runs: not the official images, of which the reader warns.
DOWNLOADED = {
    page: lambda folder: layouts.cifar10_root(folder / "data", None)
    for page in ("docs/cifar10.md", "docs/walk.md")
}


def test_these_are_the_pages_with_code():
    assert set(pages_with("python")) == set(FACTS)


@pytest.mark.parametrize("page", sorted(FACTS))
def test_code_runs_as_printed(page, tmp_path):
    """All blocks of a page make one program. It runs in a process of its own, as a reader would run it."""
    if page == "docs/ptx.md" and MISSING:
        pytest.skip(f"NOT EXECUTED: the page of the PTX machine, {MISSING}")
    facts = "\n".join(line.strip() for line in FACTS[page].splitlines())
    warned = [] if page in DOWNLOADED else ["-W", "error::UserWarning"]
    DOWNLOADED.get(page, lambda folder: None)(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n\n".join([*blocks(page, "python"), facts]))
    ran = subprocess.run(
        [sys.executable, *warned, script],
        cwd=tmp_path, env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def command_lines() -> list[tuple[str, str]]:
    """(page, line) of every `eagc ...` in a shell block, and of every `eagc table ...` in the text."""
    lines = []
    for page, text in PAGES.items():
        in_blocks = [line for block in blocks(page, "bash") for line in block.splitlines()]
        lines += [(page, line) for line in in_blocks if line.startswith("eagc ")]
        lines += [(page, f"{line} --dataset digits") for line in re.findall(r"`(eagc table [a-z-]+)`", text)]
    return lines


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_commands_are_understood(page, line, capsys):
    """A command that ends in --help checks the values before it; its help must name all its options."""
    _, *words = shlex.split(line, comments=True)
    with pytest.raises(SystemExit) as stopped:
        cli.main([*words, "--help-all" if words[0] == "train" else "--help"])
    printed = capsys.readouterr()
    assert stopped.value.code == 0, printed.err
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", printed.out))
    options = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    assert options <= known, f"{page}: {line}"


def test_there_are_commands_to_check():
    assert len(command_lines()) >= 35


def test_results_stand_where_readers_look_for_them():
    """The tables themselves are compared with the results files in tests/bench/test_figures.py."""
    marked = re.compile(r"<!-- results: (\w+) -->")
    assert marked.findall(PAGES["README.md"]) == ["headline"]
    sections = ["operator", "throughput", "modelled", "triangle", "overhead", "loader", "conceptor"]
    sections += ["scale", "estimate"]
    assert marked.findall(PAGES["docs/benchmarks.md"]) == sections


def test_every_guarantee_names_a_test_that_exists():
    named = re.findall(r"`(tests/[a-z_/]+\.py)((?:::\w+)+)`", PAGES["docs/guarantees.md"])
    assert len(named) >= 15
    for path, names in named:
        source = (ROOT / path).read_text()
        for name in names.split("::")[1:]:
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE), f"{path} has no {name}"


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_make_target_named_exists(page):
    makefile = (ROOT / "Makefile").read_text()
    named = re.findall(r"`make ([a-z-]+)", PAGES[page]) + re.findall(
        r"^make ([a-z-]+)", PAGES[page], re.MULTILINE
    )
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_leads_to_a_file_of_the_repository(page):
    text = re.sub(r"^[> ]*```.*?^[> ]*```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    here = (ROOT / page).parent
    missing = [target for target in targets if target and ":" not in target and not (here / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_path_named_exists(page):
    rooms = "eagc_ops|kernels|training|discovery|evidence|bench|ptx_machine|tests|docs|examples"
    named = re.findall(rf"`((?:{rooms})/[\w/.]*)`", PAGES[page])
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_the_readme_is_read_in_three_minutes():
    assert len(PAGES["README.md"].splitlines()) <= 160
