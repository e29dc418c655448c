"""`eagc bench`: one sub-command per question. On a CPU, CPU time of one thread; every ratio with its quartiles."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from eagc_ops.bench.measure import load, markdown, pin_process, save

BACKBONES = ("vit_small_patch16_224", "vit_base_patch16_224")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="eagc bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str, line: str, *, output: str = "also write the results as JSON, with machine, versions and commit"
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=line, description=line)
        command.add_argument("-o", "--output", type=Path, help=output)
        return command

    def quick(command: argparse.ArgumentParser, line: str = "fewer rounds: a look, not a result") -> None:
        command.add_argument("--quick", action="store_true", help=line)

    quick(add("operator", "the CPU path and the conceptor solve against the released formulation (CPU time)"))
    throughput = add("throughput", "rows x D x dtype: released hooks, plain torch, torch.compile, our torch path, our Triton kernel (GPU)")
    quick(throughput, "D = 768 only")
    throughput.add_argument("--rows", type=int, nargs="+", help="sweep these numbers of rows")
    throughput.add_argument("--dims", type=int, nargs="+", help="sweep these D")
    throughput.add_argument("--dtypes", nargs="+", choices=("fp32", "bf16", "fp16"), help="sweep these dtypes")
    throughput.add_argument("--budget", type=float, help="seconds of timing per shape (default: 6, quick: 2)")
    roofline = add("roofline", "picture: measured points of this device, modelled points of four GPUs from compiled resources")
    quick(roofline, "one number of rows per GPU")
    roofline.add_argument("--picture", type=Path, default=Path("roofline.svg"), help="SVG or PNG to write (default: roofline.svg)")
    overhead = add("overhead", "the paper's overhead table: steps, memory, evaluation, reference model, trunk cache")
    quick(overhead, "3 rounds instead of 9")
    overhead.add_argument("--backbone", choices=BACKBONES, default=BACKBONES[0], help="ViT to measure (default: %(default)s)")
    overhead.add_argument("--rows", type=int, default=16, help="rows of a step, two per image (default: 16)")
    overhead.add_argument("--rounds", type=int, help="timed rounds; one takes about 25 s of CPU time with the defaults")
    overhead.add_argument("--dataset", help="real images of this data set, with --root (default: noise)")
    overhead.add_argument("--root", type=Path, help="folder of the data set")
    overhead.add_argument("--split-file", type=Path, help="class split of SSB data sets or of a plain image folder")
    overhead.add_argument("--picture", type=Path, help="SVG or PNG to write")
    quick(add("conceptor", "S and Ebar from features: time, error, symmetry, eigenvalues"), "without D = 4096 and N = 20000")
    aot = add("aot", "compile the launch table for GPUs that are not there: registers, spills, shared memory")
    aot.add_argument("--subset", action="store_true", help="one case per architecture (half a minute) instead of the whole table (minutes)")
    aot.add_argument("--jobs", type=int, default=2, help="compilations at a time (default: 2)")
    quick(add("all", "everything above but aot, with pictures", output="folder for results and pictures (default: out/bench)"))
    compare = commands.add_parser("compare", help="two results files: ratios, and what became worse; exit code 1 if anything did")
    compare.add_argument("a", type=Path, metavar="A.json", help="before")
    compare.add_argument("b", type=Path, metavar="B.json", help="after")
    compare.add_argument("--threshold", type=float, default=0.1, help="how much worse counts: 0.1 is 10 %% (default)")
    arguments = parser.parse_args(argv)
    if arguments.command not in ("aot", "compare"):
        pin_process()
    return globals()[f"run_{arguments.command}"](arguments)


def run_operator(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.operator import ROUNDS, conceptor_rows, operator_rows

    print("The operator, D = 768, fp32, half the rows labelled; CPU time of one thread, variants interleaved, speed-ups paired by round\n")
    operator = operator_rows((lambda rows: 5) if arguments.quick else ROUNDS.get)
    print(markdown(operator), "\n")
    print("The conceptor's solve, R given, against R @ inv(R + a^-2 I) in fp32\n")
    conceptor = conceptor_rows(5 if arguments.quick else 21)
    print(markdown(conceptor))
    if arguments.output:
        save(arguments.output, "operator", {"operator": operator, "conceptor": conceptor})
    return 0


def run_throughput(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.throughput import Shape, shapes, table, throughput_rows

    chosen = shapes(device(), arguments.quick)
    for name, column in (("rows", 0), ("dims", 1), ("dtypes", 2)):  # a given list replaces that side of the default sweep
        if getattr(arguments, name):
            rest = list(dict.fromkeys(shape[:column] + shape[column + 1 :] for shape in chosen))
            chosen = [Shape(*other[:column], value, *other[column:]) for other in rest for value in getattr(arguments, name)]
    print("One call of the operator, forward and backward; half the rows labelled. GFLOP/s and GB/s are of the necessary work, `of limit`")
    print("compares with one product of all rows that must be multiplied. A provider that is wrong against fp64 is not timed.\n")
    rows = throughput_rows(chosen, device(), arguments.budget or (2.0 if arguments.quick else 6.0))
    print(markdown(table(rows)))
    if arguments.output:
        save(
            arguments.output, "throughput", {"settings": {"device": str(device()), "threads": torch.get_num_threads()}, "throughput": rows}
        )
    return 0


def run_roofline(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.throughput import shapes, throughput_rows

    fp32 = [shape for shape in shapes(device(), quick=True) if shape.dtype == "fp32"]
    return draw_roofline(arguments, throughput_rows(fp32, device(), 2.0))


def draw_roofline(arguments: argparse.Namespace, measured: list[dict]) -> int:
    from eagc_ops.bench.roofline import ASSUMPTIONS, draw, measured_roofs, modelled_rows
    from eagc_ops.environment import describe

    roofs = measured_roofs(device())
    try:
        modelled = modelled_rows((256,) if arguments.quick else (256, 1024, 4096))
    except ModuleNotFoundError as error:  # Triton has no wheels for every platform
        print(f"no modelled points: {error}", file=sys.stderr)
        modelled = []
    machine = describe()["machine"]
    title = machine["gpus"][0] if device().type == "cuda" else f"{machine['cpu']}, one thread"
    draw(arguments.picture, roofs, measured, modelled, title)
    print(f"{title}: product {roofs['flop_per_s'] / 1e9:.1f} GFLOP/s, copy {roofs['bytes_per_s'] / 1e9:.1f} GB/s (measured)\n")
    names = ("device", "dtype", "rows", "bound_by", "registers", "blocks_per_sm")
    lines = [
        {"modelled, not measured": row["device"], **{name: row[name] for name in names[1:]}, "us": f"{row['seconds'] * 1e6:.0f}"}
        for row in modelled
    ]
    print(markdown(lines) if lines else "")
    print(f"\npicture: {arguments.picture}")
    if arguments.output:
        save(arguments.output, "roofline", {"roofs": roofs, "measured": measured, "modelled": modelled, "assumptions": ASSUMPTIONS})
    return 0


def run_overhead(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import overhead as tables

    rounds = arguments.rounds or (3 if arguments.quick else 9)
    images = 8 if arguments.quick else 16
    real = {"dataset": arguments.dataset, "root": arguments.root, "split_file": arguments.split_file}
    found = tables.overhead(arguments.backbone, arguments.rows, device(), rounds, images, **real)
    print(f"SimGCD with {arguments.backbone} at 224 pixels, {arguments.rows} rows; median of {rounds} rounds, quartiles in brackets\n")
    for rows, table in (
        ("steps", tables.step_table), ("steps", tables.memory_table), ("evaluation", tables.evaluation_table),
        ("reference", tables.reference_table), ("epochs", tables.epoch_table), ("conceptor", list), ("bars", tables.bar_table),
    ):  # fmt: skip
        print(markdown(table(found[rows])), "\n")
    print(markdown(tables.paper_table()))
    if arguments.picture:
        tables.draw(arguments.picture, found)
    if arguments.output:
        save(arguments.output, "overhead", found)
    return 0


def run_conceptor(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.conceptor import conceptor_tables, quality_table, time_table

    found = conceptor_tables(arguments.quick, device())
    print("S and Ebar from features, aperture 2\n")
    print(markdown(time_table(found["times"])), "\n")
    print(markdown(quality_table(found["quality"])))
    if arguments.output:
        save(arguments.output, "conceptor", found)
    return 0


def run_all(arguments: argparse.Namespace) -> int:
    """One after the other; the throughput rows serve the picture too."""
    folder = arguments.output or Path("out/bench")
    begin = time.perf_counter()
    settings = {"quick": arguments.quick, "rows": None, "dims": None, "dtypes": None, "budget": None}
    settings |= {"backbone": BACKBONES[0], "rounds": None, "dataset": None, "root": None, "split_file": None}

    def options(name: str, **more) -> argparse.Namespace:
        return argparse.Namespace(**{**settings, "output": folder / f"{name}.json", **more})

    for title, run, own in (
        ("The operator on a CPU", run_operator, options("operator")),
        ("Throughput", run_throughput, options("throughput")),
        ("Overhead of EAGC in a training step", run_overhead, options("overhead", rows=16, picture=folder / "overhead.svg")),
        ("Conceptor", run_conceptor, options("conceptor")),
    ):
        print(f"\n## {title}\n", flush=True)
        run(own)
    print("\n## Roofline\n", flush=True)
    draw_roofline(options("roofline", picture=folder / "roofline.svg"), load(folder / "throughput.json")["throughput"])
    print(f"\nresults and pictures: {folder}; {time.perf_counter() - begin:.0f} s")
    return 0


def run_compare(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.compare import compare, table

    try:
        a, b = load(arguments.a), load(arguments.b)
        changes = compare(a, b, arguments.threshold)
    except ValueError as error:
        print(f"eagc bench compare: {error}", file=sys.stderr)
        return 2
    for name in ("machine", "versions"):
        if a[name] != b[name]:
            print(f"note: {name} differs between the two files; compare speed-ups rather than times", file=sys.stderr)
    if not changes:
        print("eagc bench compare: the files have no measured row in common", file=sys.stderr)
        return 2
    print(markdown(table(changes)))
    regressions = sum(change.regression for change in changes)
    print(f"\n{len(changes)} measurements, {regressions} regressions beyond {arguments.threshold:.0%}")
    return 1 if regressions else 0


def run_aot(arguments: argparse.Namespace) -> int:
    from eagc_ops.kernels import aot

    results = aot.compile_all(list(aot.cases(subset=arguments.subset)), arguments.jobs)
    print(aot.table(results))
    failed = [case for case, found in results if found.problems]
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed")
    if arguments.output:
        save(arguments.output, "aot", {"cases": [aot.as_record(*result) for result in results]})
    return 1 if failed else 0


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
