"""The notebooks run from top to bottom as a reader runs them, and show what they print."""

import json
import os
import re
import subprocess
import sys

import pytest
from documents import ROOT

NOTEBOOKS = sorted(path.name for path in (ROOT / "examples").glob("*.ipynb"))
RUN = """
import json, sys
from pathlib import Path
import notebooks
found = [[cell["outputs"], outputs] for cell, outputs in notebooks.run(Path(sys.argv[1]))]
print("OUTPUTS" + json.dumps(found))
"""


def outputs(name, folder):
    """(stored, present) outputs of every cell; a warning is an error."""
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", RUN, ROOT / "examples" / name],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests/support"), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.rpartition("OUTPUTS")[2])


def test_there_is_one_of_the_operator_and_one_of_discovery():
    assert NOTEBOOKS == ["discovery.ipynb", "operator.ipynb"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_it_prints(name, tmp_path):
    """The text, not the bytes of pictures: libraries pack these differently."""
    for stored, now in outputs(name, tmp_path):
        assert [output.get("text") for output in stored] == [output.get("text") for output in now], (
            f"examples/{name} is out of date: run tests/support/notebooks.py on it in an empty folder"
        )
        assert ["data" in output for output in stored] == ["data" in output for output in now]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_lead_to_files(name):
    cells = json.loads((ROOT / "examples" / name).read_text())["cells"]
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    targets = re.findall(r"\]\(([^)#]+)", text)
    assert targets and all((ROOT / "examples" / target).exists() for target in targets)
