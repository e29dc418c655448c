"""The figures of the README, from the results files: `python -m eagc_ops.bench.readme` rewrites what stands between the markers.

<!-- results: NAME -->   ...   <!-- end -->
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from eagc_ops.bench import conceptor, operator, overhead, throughput
from eagc_ops.bench.measure import load, markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def operator_section(results: dict) -> str:
    rows = results["operator"]
    active = f"Half the rows are labelled, {rows[0]['active']:.0%} of the others have tau > 0."
    tables = markdown(operator.operator_table(rows)), markdown(operator.solve_table(results["conceptor"]))
    return "\n\n".join([f"{measured_on(results, 'D = 768, fp32, ')} {active}", *tables])


def throughput_section(results: dict) -> str:
    """D = 768 and whatever was refused; the sweep is in the results file."""
    rows = [row for row in results["throughput"] if row["D"] == 768 or row["kind"] != "measured"]
    return f"{measured_on(results)}\n\n{markdown(throughput.table(rows))}"


def overhead_section(results: dict) -> str:
    settings = results["settings"]
    parts = [
        f"{measured_on(results)} {settings['backbone']}, {settings['image_size']} pixels, {settings['rows']} rows (half of them labelled). "
        f"Rounds: {settings['rounds']} of steps, {results['epochs'][0]['rounds']} of epochs, evaluation and reference model.",
        markdown(overhead.step_table(results["steps"])),
        markdown(overhead.memory_table(results["steps"])),
        overhead.memory_remark(results["steps"]),
        *([markdown(overhead.bar_table(results["bars"]))] if results["bars"] else []),
        markdown(overhead.evaluation_table(results["evaluation"])),
        markdown(overhead.epoch_table(results["epochs"])),
        markdown(overhead.reference_table(results["reference"])),
        "The paper's own table, from an A100 with ViT-B/16, whole batches and loading: its ratios may be read beside those above, its "
        f"seconds not. An inversion at d = 1024 takes {overhead.INVERSION_1024_MS} ms there, in every epoch; here S is computed once.",
        markdown(overhead.paper_table()),
    ]
    return "\n\n".join(parts)


def conceptor_section(results: dict) -> str:
    tables = conceptor.time_table(results["times"]), conceptor.quality_table(results["quality"])
    return "\n\n".join([measured_on(results), *map(markdown, tables)])


def measured_on(results: dict, what: str = "") -> str:
    machine, torch = results["machine"], results["versions"]["torch"]
    where = f"{machine['cores']} cores of {machine['cpu']}" if not machine["gpus"] else machine["gpus"][0]
    how = "one thread, CPU time, allocator pinned, " if not machine["gpus"] else ""
    return (
        f"Measured on {results['date']} on {where}, torch {torch}: {what}{how}variants interleaved; medians of ratios paired by round, "
        "quartiles in brackets."
    )


SECTIONS = {
    "operator": operator_section,
    "throughput": throughput_section,
    "overhead": overhead_section,
    "conceptor": conceptor_section,
}


def render(text: str) -> str:
    """The README with every marked section made anew from its results file."""

    def section(match: re.Match) -> str:
        name = match.group(1)
        return f"<!-- results: {name} -->\n{SECTIONS[name](load(RESULTS / f'{name}.json'))}\n<!-- end -->"

    return re.sub(r"<!-- results: ([a-z_-]+) -->.*?<!-- end -->", section, text, flags=re.DOTALL)


def main() -> int:
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
