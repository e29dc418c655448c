"""The files around the code agree with it: version bounds, citation, workflow, issue template, hooks."""

import functools
import pkgutil
import re
import subprocess
import sys
from typing import Any

import yaml
from documents import ROOT
from packaging.version import Version

import eagc_ops
from eagc_ops.kernels import aot


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / file).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


@functools.cache
def arguments_of_setup() -> dict[str, Any]:
    """The arguments with which setup.py calls `setup`."""
    code = "import setuptools, runpy; setuptools.setup = lambda **s: print(s); runpy.run_path('setup.py')"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return eval(ran.stdout)


def floors(*extras: str) -> dict[str, str]:
    """Package -> lowest version, as setup.py declares them for the package with these extras."""
    bounds = arguments_of_setup()["install_requires"] + [
        bound for extra in extras for bound in arguments_of_setup()["extras_require"][extra]
    ]
    return dict(re.match(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", bound).groups() for bound in bounds)


def test_every_lowest_version_of_setup_py_is_installed_by_test_lowest():
    """The extras of docs and dev are left out: they hold tools of developers."""
    makefile = (ROOT / "Makefile").read_text()
    extras = re.search(r"-c constraints-lowest.txt -e '.\[([\w,]+)\]'", makefile)[1].split(",")
    bounds, lowest = floors(*extras), pins("constraints-lowest.txt")
    assert bounds.keys() == floors("train", "bench", "test", "examples").keys() == lowest.keys()
    for name, bound in bounds.items():
        assert Version(lowest[name]) == Version(bound), f"{name}: setup.py says >= {bound}"


def test_the_compile_gate_names_the_versions_of_triton_it_was_tested_with():
    for version, file in (
        (aot.LOWEST_TRITON, "constraints-lowest.txt"),
        (aot.TESTED_TRITON, "constraints.txt"),
    ):
        assert pins(file)["triton"].startswith(".".join(map(str, version)) + ".")


def test_every_dependency_has_a_tested_version():
    assert floors("all").keys() <= pins("constraints.txt").keys()


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


def test_what_the_changelog_says_has_moved_is_there():
    """A reader who follows the table of moved names can import what it names."""
    table = (ROOT / "CHANGELOG.md").read_text().split("### Moved")[1].split("\n### ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| `eagc_ops")]
    names = [name for row in rows for name in re.findall(r"`(eagc_ops[\w.]*)`", row)]
    assert len(names) >= len(rows) >= 8
    for name in names:
        pkgutil.resolve_name(name)


def test_the_documentation_is_sorted_by_reader_and_no_section_is_long():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    sections = {name: pages for entry in nav for name, pages in entry.items() if isinstance(pages, list)}
    assert [*sections] == ["Use the operator", "Train", "Discover", "Evidence", "Benchmarks", "Develop"]
    assert all(0 < len(pages) <= 7 for pages in sections.values())
