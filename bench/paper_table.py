"""`eagc table overhead`: the paper's overhead table, measured by `eagc bench overhead`.

It stands here because the benchmarks know the training package, and not the other way round.
"""

from __future__ import annotations

import subprocess
import sys

from eagc_ops.app.console import command
from eagc_ops.app.interrupts import unaware_children
from eagc_ops.app.places import writable_folder
from eagc_ops.bench.commands.overhead import parse
from eagc_ops.evidence.commands.table import DEFAULTS, table_parser
from eagc_ops.evidence.paper.values import PAPER

MEASURED = ("dataset", "root", "split_file", "backbone")  # options of `eagc bench overhead`


@command("eagc table")
def main(argv: list[str]) -> int:
    """Measure the overhead table, and write table.md and table.html beside its results."""
    parser = table_parser()
    typed = vars(parser.parse_args(["overhead", *argv]))
    for name in typed:
        if name not in ("name", "output", "dry_run", *MEASURED):
            parser.error(
                f"{_option(name)} is for training, but overhead is measured (on the GPU if there is one): "
                f"leave it out; there are {', '.join(map(_option, MEASURED))}, and `eagc bench overhead` has "
                "more"
            )
    options = DEFAULTS | typed
    writable_folder("--output", options["output"])
    home = options["output"] / "overhead"
    results, picture = home / "table.json", home / "overhead.svg"
    words = [word for name in MEASURED if name in typed for word in (_option(name), str(typed[name]))]
    words += ["-o", str(results), "--picture", str(picture)]
    parse(words)  # refuses options that contradict each other, before a process is started
    label = PAPER["overhead"].label
    print(f"overhead (paper: {label}) is measured by: eagc bench overhead {' '.join(words)}", flush=True)
    if options["dry_run"]:
        print(
            "ESTIMATE 5 min on one CPU core with ViT-S: 9 rounds of about 25 s, and the epochs; no run is "
            "trained"
        )
        return 0
    home.mkdir(parents=True, exist_ok=True)
    # In a process of its own, because the benchmark restarts itself with a pinned allocator.
    with unaware_children():  # Ctrl-C ends it through this process
        measuring = subprocess.Popen([sys.executable, "-m", "eagc_ops.app.cli", "bench", "overhead", *words])
    try:
        measuring.wait()
    finally:
        measuring.kill()
    if measuring.returncode != 0:
        return measuring.returncode
    # torch and matplotlib take seconds to import: --help, wrong options and a plan do not wait for them.
    from eagc_ops.bench import tables
    from eagc_ops.bench.results_file import load
    from eagc_ops.evidence.paper.page import write_overhead

    measured = load(results)
    note, svg = f"{tables.overhead_note(measured)}.", picture.read_text(encoding="utf-8")
    write_overhead(home, note, tables.overhead(measured), svg)
    print(f"table: {home / 'table.md'}, {home / 'table.html'}")
    return 0


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
