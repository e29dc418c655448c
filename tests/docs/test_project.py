"""The files around the code agree with it: version bounds, citation, workflow, issue template, hooks."""

import re
import subprocess
import sys

import yaml
from documents import ROOT

import eagc_ops


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def floors(extra: str = "") -> dict[str, str]:
    """Package -> lowest version, as setup.py declares them (with an extra: those of the extra alone)."""
    code = "import setuptools, runpy; setuptools.setup = lambda **s: print(s); runpy.run_path('setup.py')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    settings = eval(ran.stdout)
    bounds = settings["extras_require"][extra] if extra else settings["install_requires"]
    return dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", bound).groups() for bound in bounds)


def test_the_lowest_versions_are_those_of_setup_py():
    bounds, lowest = {**floors(), **floors("test")}, pins("constraints-lowest.txt")
    assert lowest.keys() == bounds.keys()
    for name, bound in bounds.items():
        short = lowest[name].split(".")[: len(bound.split("."))]
        assert ".".join(short) == bound, f"{name}: setup.py says >= {bound}"


def test_every_dependency_has_a_tested_version():
    assert {**floors(), **floors("all")}.keys() <= pins("constraints.txt").keys()


def test_every_bound_has_its_reason_beside_it():
    bounds = [
        line for line in (ROOT / "setup.py").read_text().splitlines() if re.match(r'[A-Z_0-9]+ = ".*>=', line)
    ]
    assert len(bounds) >= 25
    assert all("  # " in line for line in bounds)


def test_the_citation_has_the_version_of_the_package_and_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == eagc_ops.__version__
    paper = citation["preferred-citation"]
    assert paper["title"].startswith("The Devil Is in Gradient Entanglement") and len(paper["authors"]) == 7


def test_the_workflow_runs_the_checks_on_every_python_and_on_the_lowest_versions():
    jobs = yaml.safe_load((ROOT / ".github/workflows/checks.yml").read_text())["jobs"]
    commands = {name: [step.get("run", "") for step in job["steps"]] for name, job in jobs.items()}
    assert ".ci/run" in commands["everything"]
    assert "make test-lowest" in commands["lowest"]
    assert jobs["pythons"]["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]


def test_a_bug_report_brings_the_self_test_and_the_environment():
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())
    required = [
        field["attributes"]["label"] for field in form["body"] if field.get("validations", {}).get("required")
    ]
    assert any("eagc env" in label for label in required)
    assert any("eagc selftest --json" in label for label in required)


def test_the_hooks_before_a_commit_are_the_tools_of_lint():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = re.search(r"^types:.*?^format:", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)[0]
    tools = {hook["id"].split("-")[0] for hook in hooks}
    assert tools == {"ruff", "codespell", "mypy"}
    assert all(tool in lint for tool in tools)
