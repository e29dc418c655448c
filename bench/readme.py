"""The figures of the README, from the results files: `python -m eagc_ops.bench.readme` rewrites what stands between the markers.

<!-- results: NAME -->   ...   <!-- end -->
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from eagc_ops.bench.measure import markdown

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def operator(results: dict) -> str:
    rows = [
        {
            "rows": row["rows"],
            "Ebar": row["form"].replace("energy reference", "").strip(),
            "released hooks, ms": row["hooks ms"],
            "here, ms": row["ours ms"],
            "speed-up": f"{row['speed-up']:.2f} ({row['quartiles']})",
            "error against fp64": row["error"],
        }
        for row in results["operator"]
    ]
    solves = [
        {
            "D": row["D"],
            "conceptor solve": {"released": "R @ inv(...), fp32, as released", "fp32": "here, fp32", "fp64": "here, fp64 (default)"}[
                row["solve"]
            ],
            "ms": row["ms"],
            "speed-up": f"{row['speed-up']:.2f} ({row['quartiles']})",
            "largest error": row["largest error"],
        }
        for row in results["conceptor"]
    ]
    machine, torch = results["machine"], results["versions"]["torch"]
    conditions = (
        f"Measured on {results['date']} on {machine['cores']} cores of {machine['cpu']}, torch {torch}: D = 768, fp32, "
        "one thread, CPU time, allocator pinned, variants interleaved; medians of ratios paired by round, quartiles in brackets. "
        f"Half the rows are labelled, {results['operator'][0]['tau > 0']} of the others have tau > 0."
    )
    return f"{conditions}\n\n{markdown(rows)}\n\n{markdown(solves)}"


SECTIONS = {"operator": operator}


def render(text: str) -> str:
    """The README with every marked section made anew from its results file."""

    def section(match: re.Match) -> str:
        name = match.group(1)
        results = json.loads((RESULTS / f"{name}.json").read_text())
        return f"<!-- results: {name} -->\n{SECTIONS[name](results)}\n<!-- end -->"

    return re.sub(r"<!-- results: ([a-z_-]+) -->.*?<!-- end -->", section, text, flags=re.DOTALL)


def main() -> int:
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
