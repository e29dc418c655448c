"""Write the figures of README.md and docs/, and the README's picture, from the results files.

`python -m eagc_ops.bench.figures` replaces the text between two markers of a page.

    <!-- results: NAME -->
    <!-- end -->
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from eagc_ops.app.files import atomic_write
from eagc_ops.app.table import Table
from eagc_ops.bench import discover_tables, discover_training, tables
from eagc_ops.bench.measure import Spread
from eagc_ops.bench.overhead import PAPER
from eagc_ops.bench.results_file import load
from eagc_ops.bench.steps import OURS, OURS_BASELINE, RELEASED_EAGC
from eagc_ops.training.config import SPECS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"

_INVERSION_1024_MS = 7.3  # from the paper's text; its table does not have it


def main() -> int:
    from eagc_ops.bench.pictures import draw_cost  # matplotlib takes a second to import

    draw_cost(ROOT / "bench/results/cost.svg", load(RESULTS / "overhead.json"))
    for page in pages(ROOT):
        text = page.read_text()
        try:
            new = render(text)
        except ValueError as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
        if new != text:
            atomic_write(page, new)
            print(f"written: {page.relative_to(ROOT)}")
    return 0


def pages(root: Path) -> list[Path]:
    """The Markdown files whose marked sections are rendered: README.md and everything in docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def render(text: str, results: Path = RESULTS) -> str:
    """The Markdown text with its marked sections rewritten from the files in `results`."""

    def section(match: re.Match[str]) -> str:
        name, old = match.groups()
        if name not in SECTIONS:
            raise ValueError(
                f"the name of a results section must be one of {', '.join(SECTIONS)}, got {name}"
            )
        if old is None or "<!-- results:" in old:
            raise ValueError(f"the results section {name} has no <!-- end -->; add it where the figures stop")
        return f"<!-- results: {name} -->\n{SECTIONS[name](results)}\n<!-- end -->"

    return re.sub(r"<!-- results: (\S+) -->(?:(.*?)<!-- end -->)?", section, text, flags=re.DOTALL)


def headline_section(results: Path) -> str:
    """The few figures for the README: EAGC as released beside EAGC here."""
    operator, overhead = (load(results / f"{name}.json") for name in ("operator", "overhead"))
    fixed = [row for row in operator["operator"] if row["form"] == "energy reference given"]
    running = [row for row in operator["operator"] if row["form"] == "running energy reference"]
    solves = {row["solve"]: row for row in operator["conceptor"] if row["D"] == 768}
    steps = {row["variant"]: row for row in overhead["steps"]}
    epochs = {row["way"]: row for row in overhead["epochs"]}
    released, ours, cached = steps[RELEASED_EAGC], steps[OURS], epochs["here, trunk cache"]

    def milliseconds(*spreads: Spread) -> str:
        return " / ".join(f"{spread.median * 1e3:.3g}" for spread in spreads) + " ms"

    def times(rows: list[dict[str, Any]]) -> str:
        return " / ".join(f"{row['speed_up'].median:.1f}" for row in rows) + " x"

    counts = " / ".join(f"{row['rows']:,}" for row in fixed)
    lines = [
        (
            f"operator, D = 768, {counts} rows",
            milliseconds(*(row["hooks_seconds"] for row in fixed)),
            milliseconds(*(row["seconds"] for row in fixed)),
            f"{times(fixed)}; with a running Ebar {times(running)}",
        ),
        (
            "cost of EAGC, as a share of the same step without it",
            f"{released['add_on_share'].median:.0%}",
            f"{ours['add_on_share'].median:.2%}",
            None,
        ),
        (
            "time of a step with EAGC, relative to SimGCD as released",
            f"{released['ratio_to_released'].median:.2f}",
            f"{ours['ratio_to_released'].median:.2f}",
            None,
        ),
        (
            "peak memory of a step with EAGC, relative to SimGCD as released",
            f"{released['peak_to_released']:.2f}",
            f"{ours['peak_to_released']:.2f}",
            None,
        ),
        (
            f"epoch of {cached['images_drawn']} images; here with a trunk cache that was built beforehand",
            f"{epochs['as released']['seconds'].median:.3g} s",
            f"{cached['seconds'].median:.3g} s",
            times([cached]),
        ),
        (
            "conceptor solve, D = 768; released in fp32, here in fp64",
            milliseconds(solves["released"]["seconds"]),
            milliseconds(solves["fp64"]["seconds"]),
            times([solves["fp64"]]),
        ),
    ]
    columns = ("", "EAGC as released", "here", "speed-up")
    settings = overhead["settings"]
    size = f"{settings['image_size']} pixels, {settings['rows']} rows"
    how = "" if overhead["machine"]["gpus"] else " of CPU time of one thread"
    return _paragraphs(
        f"Medians{how} on {_machine(overhead)}. Steps and epochs are of {settings['backbone']}, {size}.",
        Table.of([dict(zip(columns, line)) for line in lines]),
    )


def operator_section(results: Path) -> str:
    content = load(results / "operator.json")
    active = f"Half the rows are labelled, {content['operator'][0]['active']:.0%} of the others have tau > 0."
    return _paragraphs(
        f"{_measured_on(content, 'D = 768, fp32, ')} {active}",
        tables.operator(content["operator"]),
        tables.solve(content["conceptor"]),
    )


def throughput_section(results: Path) -> str:
    """D = 768 and every row that was not timed; the results file has the whole sweep."""
    content = load(results / "throughput.json")
    rows = [row for row in content["throughput"] if row["D"] == 768 or row["kind"] != "measured"]
    return _paragraphs(_measured_on(content), tables.throughput(rows))


def overhead_section(results: Path) -> str:
    content = load(results / "overhead.json")
    settings, steps = content["settings"], content["steps"]
    size = f"{settings['image_size']} pixels, {settings['rows']} rows (half of them labelled)"
    rounds = f"{settings['rounds']} of steps, {content['epochs'][0]['rounds']} of epochs"
    return _paragraphs(
        f"{_measured_on(content)} {settings['backbone']}, {size}. Rounds: {rounds}, evaluation and "
        "reference model.",
        tables.steps(steps),
        tables.memory(steps),
        _memory_remark(steps),
        *([tables.bars(content["bars"])] if content["bars"] else []),
        tables.evaluation(content["evaluation"]),
        tables.epochs(content["epochs"]),
        tables.reference_model(content["reference"]),
        "The next table is the paper's own, from an A100 with ViT-B/16, whole batches and loading. Its "
        "ratios can be compared with those above, but not its seconds. An inversion at d = 1024 takes "
        f"{_INVERSION_1024_MS} ms there, in every epoch; here S is computed once.",
        tables.paper(content["paper"]),
    )


def loader_section(results: Path) -> str:
    content = load(results / "loader.json")
    return _paragraphs(
        f"{_measured_on(content)} {tables.loader_note(content)}",
        tables.loader(content["loader"]),
        tables.bars(content["bars"]),
        _loader_remark(content["loader"]),
    )


def _loader_remark(rows: list[dict[str, Any]]) -> str:
    """What one loading process would take of the paper's epoch, computed."""
    printed = next(row for row in PAPER if row["data"] == "CUB")
    epoch = printed["epoch_seconds"] / SPECS["cub"].train
    training = {row["way"]: row["seconds_per_image"].median for row in rows if "two views" in row["pass"]}
    shares = ", ".join(f"{seconds / epoch:.0%} {way}" for way, seconds in training.items())
    return (
        f"Computed, not measured: the paper's epoch of SimGCD on CUB takes {printed['epoch_seconds']} s on "
        f"an A100, {epoch * 1e3:.1f} ms per image. One loading process of this CPU would be busy for this "
        f"share of it: {shares}."
    )


def conceptor_section(results: Path) -> str:
    content = load(results / "conceptor.json")
    return _paragraphs(
        _measured_on(content),
        tables.conceptor_times(content["times"]),
        tables.conceptor_quality(content["quality"]),
    )


def modelled_section(results: Path) -> str:
    content = load(results / "roofline.json")
    compiled = content["modelled_with"]
    return _paragraphs(
        f"**Modelled, not measured**, from code compiled on {compiled['date']} by Triton "
        f"{compiled['versions']['triton']}; D = {content['modelled'][0]['D']}.",
        tables.modelled(content["modelled"]),
        "\n".join(f"- {line}" for line in content["assumptions"]),
    )


def triangle_section(results: Path) -> str:
    content = load(results / "triangle.json")
    return _paragraphs(
        f"Counted on {content['date']} in the code that Triton {content['versions']['triton']} compiles, for "
        "the column block that has the most steps; without -> with the triangle.",
        tables.triangle(content["triangle"]),
    )


def estimate_section(results: Path) -> str:
    content = load(results / "estimate.json")
    return _paragraphs(
        f"Measured on {content['date']} on {_machine(content)}: one thread, CPU time of a search, median and "
        "quartiles over the seeds.",
        tables.estimate(content["estimate"]),
    )


def discover_section(results: Path) -> str:
    content = load(results / "discover.json")
    rows = content["records"]
    return _paragraphs(
        f"Measured on {content['date']} on {_machine(content)}, CPU time of one thread. All / Old / New: "
        "means over draws; all ways get the same classes and labels.",
        discover_tables.accuracies(rows),
        "The estimated number of categories; a question mark: said to be no estimate, but a guess.",
        discover_tables.estimates(rows),
        "Fewer labels, fewer known classes, long tails (unlabelled classes differ in size by up to 10): All "
        "with the true K.",
        discover_tables.conditions(rows),
    )


def discover_training_section(results: Path) -> str:
    content = load(results / "discover_training.json")
    return _paragraphs(
        f"Measured on {content['date']} on {_machine(content)}, one thread. All / Old / New: means over "
        "draws, true K; CPU minutes of everything, features and rehearsal too.",
        discover_training.table(content["records"]),
    )


def scale_section(results: Path) -> str:
    content = load(results / "scale.json")
    one = content["kmeans"][0]
    return _paragraphs(
        f"Measured on {content['date']} on {_machine(content)}: one thread, CPU time, one run each; "
        f"D = {content['scale'][0]['D']}.",
        tables.scale(content["scale"]),
        f"k-means of {one['N']:,} rows of {one['D']} dimensions into {one['K']} clusters:",
        tables.kmeans(content["kmeans"]),
    )


SECTIONS = {
    "headline": headline_section,
    "operator": operator_section,
    "throughput": throughput_section,
    "overhead": overhead_section,
    "loader": loader_section,
    "conceptor": conceptor_section,
    "modelled": modelled_section,
    "triangle": triangle_section,
    "estimate": estimate_section,
    "discover": discover_section,
    "training": discover_training_section,
    "scale": scale_section,
}


def _paragraphs(*parts: str | Table) -> str:
    return "\n\n".join(part if isinstance(part, str) else part.markdown() for part in parts)


def _measured_on(content: dict[str, Any], setting: str = "") -> str:
    how = "one thread, CPU time, allocator pinned, " if not content["machine"]["gpus"] else ""
    return (
        f"Measured on {content['date']} on {_machine(content)}: {setting}{how}variants interleaved; medians "
        "of ratios paired by round, quartiles in brackets."
    )


def _machine(content: dict[str, Any]) -> str:
    machine = content["machine"]
    name = machine["gpus"][0] if machine["gpus"] else f"{machine['cores']} cores of {machine['cpu']}"
    return f"{name}, torch {content['versions']['torch']}"


def _memory_remark(rows: list[dict[str, Any]]) -> str:
    """The two memory columns of the last row, and the reason why they differ."""
    ours, base = (next(row for row in rows if row["variant"] == name) for name in (OURS, OURS_BASELINE))
    more = tables.mebibytes(ours["memory"]["kept"] - base["memory"]["kept"])
    return (
        "*Kept* memory holds parameters, optimizer state and the tensors that forward saves for backward. "
        "*Peak* is the most that is alive at once, gradients included, as a CUDA allocator counts it. In the "
        f"last row, the step with EAGC has {ours['peak_to_baseline']:.3f} times its baseline's peak and "
        f"{ours['kept_to_baseline']:.3f} times its kept memory: {more} MiB more than "
        f"{tables.mebibytes(base['memory']['kept'])} MiB. Nearly all of the difference is the frozen block "
        "and S, which every exact reference model needs. The share falls as the batch grows."
    )


if __name__ == "__main__":
    sys.exit(main())
