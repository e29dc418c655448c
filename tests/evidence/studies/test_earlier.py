"""Evidence of an earlier part of a study counts in a later one, and is not trained again."""

import csv
import re
import shutil
from dataclasses import replace

import pytest

from eagc_ops.evidence.studies import study as module
from eagc_ops.evidence.studies.earlier import earlier_part, take_over
from eagc_ops.evidence.studies.evidence import write_evidence
from eagc_ops.evidence.studies.plan import study_plan
from eagc_ops.evidence.studies.running import run_study
from eagc_ops.training.config import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore:the run predicts", "ignore:tau is below")


def section(page, name):
    return re.search(rf"^## {re.escape(name)}\n.*?(?=^## )", page, re.MULTILINE | re.DOTALL)[0]


def table(study):
    with (study.output / "evidence.csv").open() as lines:
        return {line["run"]: line for line in csv.DictReader(lines)}


def test_a_study_on_two_machines(study, tmp_path, monkeypatch):
    """The second one has SPTNet, which starts from runs of SimGCD that only the first one has."""
    monkeypatch.setitem(module.OTHERS, "small_sptnet", {"phase_batches": 1, "pad_width": 2})
    study = replace(study, regimes=study.regimes[:1], others=("small_sptnet",))
    first, sptnet = study.cells
    run_study(study, [first], 1, lambda text: None)
    page, numbers = (study.output / "evidence.md").read_text(), table(study)
    said = [line for line in page.splitlines() if line.startswith(("| EAGC | small |", "| whitened EAGC |"))]
    assert len(said) == 5  # also of the tables of its section

    second, lines = replace(study, output=tmp_path / "second"), []
    take_over(second, study.output)
    plan = study_plan(second, earlier_part(second)).splitlines()
    assert plan[0].endswith("6 arms x 2 seeds = 12 runs, complete in earlier evidence")
    assert "3 arms x 2 seeds = 6 runs, 0 finished; left: 16 steps" in plan[1]  # 8 runs of 2 steps
    assert plan[1].endswith("(with 2 runs of simgcd from which they start)")
    assert plan[2].startswith("  18 runs, 12 finished; left: ")
    shutil.rmtree(study.output)  # the first machine is gone

    assert run_study(second, [first, sptnet], 1, lines.append) == 0
    assert lines[0] == "1 parts are complete in earlier evidence: only their probes are made here"
    assert lines[1] == (
        f"{sptnet}: 6 runs, 0 of them finished before; first 2 runs of simgcd, from which they start"
    )
    trained = {folder.parent.name for folder in second.output.glob("runs/*/result.json")}
    assert trained == {
        *(f"3of5-paper-baseline-seed{seed}" for seed in (0, 1)),
        *(f"3of5-paper-small_sptnet-{arm}-seed{n}" for arm in ("baseline", "null", "EAGC") for n in (0, 1)),
    }
    merged = (second.output / "evidence.md").read_text()
    assert "3 of 3 planned comparisons are complete: too few seeds to decide (3)." in merged
    assert section(merged, str(first)) == section(page, str(first))
    assert [line for line in said if line not in merged] == []
    assert "## 3 known of 5 classes, recipe paper, small_sptnet" in merged
    for cell in (first, sptnet):
        assert (second.output / "figures" / f"curves-{cell.key}.svg").read_text().startswith("<svg")
    found = table(second)
    assert {name: found[name] for name in numbers if "sptnet" not in name} == {
        name: line for name, line in numbers.items() if "sptnet" not in name
    }
    assert {line["finished"] for line in found.values()} == {"yes"}
    assert (
        "Taken over from an earlier page: 3of5-paper. 2 of these runs were made again: All differs by 0.00"
        in merged
    )
    origin = page[page.index("\nWritten on ") :].strip()
    assert merged.endswith(f"That page: {origin}\n")

    # The same command again trains nothing, and a third machine takes over both parts.
    before = {file: file.stat().st_mtime_ns for file in second.output.glob("runs/*/result.json")}
    assert run_study(second, [first], 1, lines.append) == 0
    assert before == {file: file.stat().st_mtime_ns for file in second.output.glob("runs/*/result.json")}
    third = replace(study, output=tmp_path / "third")
    take_over(third, second.output)
    write_evidence(third)
    assert table(third) == found
    last = (third.output / "evidence.md").read_text()
    assert section(last, str(sptnet)) == section(merged, str(sptnet))
    assert last.endswith(merged[merged.index("Written on ") :])

    # A number that a second training does not give again is told.
    file = second.earlier / "evidence.csv"
    line = numbers["3of5-paper-baseline-seed1"]
    file.write_text(file.read_text().replace(f",yes,{line['all']},{line['old']}", f",yes,12.5,{line['old']}"))
    write_evidence(second)
    differs = abs(float(line["all"]) - 12.5)
    assert f"All differs by {differs:.2f} points at most." in (second.output / "evidence.md").read_text()


def test_runs_that_are_all_here_count_more_than_earlier_ones(study, tmp_path):
    study = replace(study, regimes=study.regimes[:1], others=())
    (cell,) = study.cells
    run_study(study, [cell], 1, lambda text: None)
    copy = tmp_path / "copy"
    shutil.copytree(study.output, copy, ignore=shutil.ignore_patterns("runs"))
    table_of_copy = copy / "evidence.csv"
    table_of_copy.write_text(re.sub(r",yes,[0-9.]+,", ",yes,1.25,", table_of_copy.read_text()))
    take_over(study, copy)
    write_evidence(study)
    page = (study.output / "evidence.md").read_text()
    assert "Taken over" not in page
    assert "1.25" not in {line["all"] for line in table(study).values()}

    # What is not an earlier part of this study is refused.
    other = replace(study, output=tmp_path / "other")
    with pytest.raises(ConfigError, match=r"other data, seeds or epochs.*: leave out --earlier, or use"):
        take_over(replace(other, settings={"epochs": 2}), copy)
    with pytest.raises(ConfigError, match=r"nowhere has no study\.json: name the folder of a study"):
        take_over(other, tmp_path / "nowhere")
    (copy / "figures" / "curves-3of5-paper.svg").unlink()
    with pytest.raises(ConfigError, match=r"is damaged or not complete: .*curves-3of5-paper\.svg"):
        take_over(other, copy)
    (copy / "evidence.md").write_text("# When does EAGC help?\n\nWritten on a day.\n")
    shutil.copytree(study.output / "figures", copy / "figures", dirs_exist_ok=True)
    with pytest.raises(
        ConfigError, match=r"has all runs of '3 known of 5 .*', but evidence\.md has no section"
    ):
        take_over(other, copy)
    shutil.copy(study.output / "evidence.md", copy)
    whole = (study.output / "evidence.csv").read_text()
    page = (copy / "evidence.md").read_text()
    for name, content, message in (
        ("evidence.csv", "run,all\n", r"evidence\.csv has other columns than this version writes"),
        (
            "evidence.csv",
            whole[: whole.rindex(",") - 30],
            r"evidence\.csv ends within the line of 3of5-paper-",
        ),
        (
            "evidence.csv",
            re.sub(r",yes,[0-9.]+,", ",yes,,", whole),
            "has no accuracy of 3of5-paper-baseline-",
        ),
        ("evidence.md", page[: page.index("## All runs")], "ends before the line that says when"),
    ):
        (copy / "evidence.csv").write_text(whole)
        (copy / name).write_text(content)
        with pytest.raises(ConfigError, match=message):
            take_over(other, copy)
    assert not other.output.exists()


def test_a_second_part_does_not_replace_the_first(study, tmp_path):
    """Parts of two machines: one takes over the other, and a third one takes over that."""
    machines = [replace(study, output=tmp_path / name, others=()) for name in "ab"]
    for machine, cell in zip(machines, machines[0].cells):
        run_study(machine, [cell], 1, lambda text: None)
    third = replace(machines[0], output=tmp_path / "c")
    take_over(third, machines[0].output)
    before = (third.earlier / "evidence.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"b lacks 3of5-paper, which .*c has taken over before: let one of"):
        take_over(third, machines[1].output)
    assert (third.earlier / "evidence.csv").read_bytes() == before
    take_over(machines[1], machines[0].output)
    write_evidence(machines[1])
    take_over(third, machines[1].output)
    assert [cell.key for cell in earlier_part(third).sections] == ["3of5-paper", "4of6-paper"]
