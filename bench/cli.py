"""`eagc bench`: one sub-command per question. On a CPU, CPU time of one thread; every ratio with its quartiles."""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch

from eagc_ops.bench.measure import load, markdown, pin_process, save

BACKBONES = ("vit_small_patch16_224", "vit_base_patch16_224")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {' '.join(message.split())}\n")


def main(argv: list[str]) -> int:
    arguments = parse(argv)
    if arguments.command != "compare":
        make_folders(arguments)
    if arguments.command not in ("aot", "compare"):
        pin_process()
    return globals()[f"run_{arguments.command}"](arguments)


def parse(argv: list[str]) -> argparse.Namespace:
    """The options, refused (exit code 2) where they contradict each other; nothing is read or written. `refuse(message)` does the same
    for what is found out later, but still before minutes of measuring."""
    parser = Parser(prog="eagc bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(
        name: str,
        line: str,
        *,
        output: str = "also write the results as JSON, with machine, versions and commit",
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=line, description=line)
        command.add_argument("-o", "--output", type=Path, help=output)
        command.set_defaults(refuse=command.error)
        return command

    def quick(command: argparse.ArgumentParser, line: str = "fewer rounds: a look, not a result") -> None:
        command.add_argument("--quick", action="store_true", help=line)

    quick(add("operator", "the CPU path and the conceptor solve against the released formulation (CPU time)"))
    throughput = add(
        "throughput",
        "rows x D x dtype: released hooks, plain torch, torch.compile, our torch path, our Triton kernel (GPU)",
    )
    quick(throughput, "D = 768 only")
    few = "with fewer no unlabelled row has tau > 0"  # or rounding alone decides that
    throughput.add_argument("--rows", type=whole(4, why=few), nargs="+", help="sweep these numbers of rows")
    throughput.add_argument("--dims", type=whole(4, why=few), nargs="+", help="sweep these D")
    throughput.add_argument(
        "--dtypes", nargs="+", choices=("fp32", "bf16", "fp16"), help="sweep these dtypes"
    )
    throughput.add_argument(
        "--budget", type=seconds, help="seconds of timing per shape (default: 6, quick: 2)"
    )
    roofline = add(
        "roofline",
        "picture: measured points of this device, modelled points of four GPUs from compiled resources",
    )
    quick(roofline, "one number of rows per GPU")
    roofline.add_argument(
        "--picture",
        type=picture,
        default=Path("roofline.svg"),
        help="SVG or PNG to write (default: roofline.svg)",
    )
    overhead = add(
        "overhead", "the paper's overhead table: steps, memory, evaluation, reference model, trunk cache"
    )
    quick(overhead, "3 rounds instead of 9")
    overhead.add_argument(
        "--backbone", choices=BACKBONES, default=BACKBONES[0], help="ViT to measure (default: %(default)s)"
    )
    half = "two views of every image, half the images labelled"
    overhead.add_argument(
        "--rows", type=whole(4, 4, why=half), default=16, help="rows of a step, two per image (default: 16)"
    )
    overhead.add_argument(
        "--rounds", type=whole(), help="timed rounds; one takes about 25 s of CPU time with the defaults"
    )
    overhead.add_argument("--dataset", help="real images of this data set, with its --root (default: noise)")
    overhead.add_argument("--root", type=Path, help="folder of the data set")
    overhead.add_argument(
        "--split-file", type=Path, help="class split of SSB data sets or of a plain image folder"
    )
    overhead.add_argument("--picture", type=picture, help="SVG or PNG to write")
    quick(
        add("conceptor", "S and Ebar from features: time, error, symmetry, eigenvalues"),
        "without D = 4096 and N = 20000",
    )
    aot = add("aot", "compile the launch table for GPUs that are not there: registers, spills, shared memory")
    aot.add_argument(
        "--subset",
        action="store_true",
        help="one case per architecture (half a minute) instead of the whole table (minutes)",
    )
    aot.add_argument("--jobs", type=whole(), default=2, help="compilations at a time (default: 2)")
    everything = add(
        "all",
        "everything above but aot, with pictures",
        output="folder for results and pictures (default: out/bench)",
    )
    everything.set_defaults(output=Path("out/bench"))
    quick(everything)
    compare = commands.add_parser(
        "compare", help="two results files: ratios, and what became worse; exit code 1 if anything did"
    )
    compare.add_argument("a", type=Path, metavar="A.json", help="before")
    compare.add_argument("b", type=Path, metavar="B.json", help="after")
    compare.add_argument(
        "--threshold",
        type=share,
        default=0.1,
        help="how much worse counts: 0.1 is 10 %% (default), 1 at most",
    )
    arguments = parser.parse_args(argv)
    if arguments.command == "overhead" and arguments.dataset is None:
        for option, value in (("--root", arguments.root), ("--split-file", arguments.split_file)):
            if value is not None:
                overhead.error(
                    f"{option} {value} needs --dataset, the name of what is there; without both, noise is measured"
                )
    return arguments


def whole(least: int = 1, step: int = 1, why: str = "") -> Callable[[str], int]:
    """Reads an option's number."""
    wanted = (
        f"give a whole number of at least {least}" if step == 1 else f"give a positive multiple of {step}"
    )

    def read(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() else least - 1
        if value < least or value % step:
            raise argparse.ArgumentTypeError(f"got {text}; {wanted}{why and f' ({why})'}")
        return value

    return read


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"got {text}; give a positive number of seconds")
    return value


def picture(text: str) -> Path:
    if Path(text).suffix not in (".svg", ".png"):
        raise argparse.ArgumentTypeError(f"got {text}; give a file name that ends in .svg or .png")
    return Path(text)


def make_folders(arguments: argparse.Namespace) -> None:
    """Of everything that will be written; refused where that is impossible."""
    for option in ("output", "picture"):
        path = getattr(arguments, option, None)
        if path is None:
            continue
        folder = path if arguments.command == "all" else path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            arguments.refuse(f"--{option} {path} cannot be written ({error}); choose another place")
        if path.is_dir() and folder != path:
            arguments.refuse(f"--{option} {path} is a folder; give the name of a file")


def run_operator(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.operator import ROUNDS, conceptor_rows, operator_rows, operator_table, solve_table

    operator = operator_rows((lambda rows: 5) if arguments.quick else ROUNDS.get)
    conceptor = conceptor_rows(5 if arguments.quick else 21)
    if arguments.output:
        save(
            arguments.output,
            "operator",
            {"settings": settings(arguments), "operator": operator, "conceptor": conceptor},
        )
    print(
        "The operator, D = 768, fp32, half the rows labelled; CPU time of one thread, variants interleaved, speed-ups paired by round\n"
    )
    print(markdown(operator_table(operator)), "\n")
    print("The conceptor's solve, R given, against R @ inv(R + a^-2 I) in fp32\n")
    print(markdown(solve_table(conceptor)))
    return 0


def run_throughput(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.throughput import Shape, shapes, table, throughput_rows

    chosen = shapes(device(), arguments.quick)
    for name, column in (
        ("rows", 0),
        ("dims", 1),
        ("dtypes", 2),
    ):  # a given list replaces that side of the default sweep
        if getattr(arguments, name):
            rest = list(dict.fromkeys(shape[:column] + shape[column + 1 :] for shape in chosen))
            chosen = [
                Shape(*other[:column], value, *other[column:])
                for other in rest
                for value in getattr(arguments, name)
            ]
    rows = throughput_rows(chosen, device(), arguments.budget or (2.0 if arguments.quick else 6.0))
    if arguments.output:
        swept = {
            name: getattr(arguments, name) for name in ("rows", "dims", "dtypes")
        }  # None: the default sweep
        save(arguments.output, "throughput", {"settings": settings(arguments) | swept, "throughput": rows})
    print(
        "One call of the operator, forward and backward; half the rows labelled. GFLOP/s and GB/s are of the nominal work, `of limit`"
    )
    print(
        "compares with one product of all rows that must be multiplied. A provider that is wrong against fp64 is not timed.\n"
    )
    print(markdown(table(rows)))
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
    if arguments.output:
        points = {"roofs": roofs, "measured": measured, "modelled": modelled, "assumptions": ASSUMPTIONS}
        save(arguments.output, "roofline", {"settings": settings(arguments), **points})
    machine = describe()["machine"]
    title = machine["gpus"][0] if device().type == "cuda" else f"{machine['cpu']}, one thread"
    draw(arguments.picture, roofs, measured, modelled, title)
    print(
        f"{title}: product {roofs['flop_per_s'] / 1e9:.1f} GFLOP/s, copy {roofs['bytes_per_s'] / 1e9:.1f} GB/s (measured)\n"
    )
    names = ("device", "dtype", "rows", "bound_by", "registers", "blocks_per_sm")
    lines = [
        {
            "modelled, not measured": row["device"],
            **{name: row[name] for name in names[1:]},
            "us": f"{row['seconds'] * 1e6:.0f}",
        }
        for row in modelled
    ]
    print(markdown(lines) if lines else "")
    print(f"\npicture: {arguments.picture}")
    return 0


def run_overhead(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench import overhead as tables
    from eagc_ops.bench.operator import solve_table

    rounds = arguments.rounds or (3 if arguments.quick else 9)
    images = 8 if arguments.quick else 16
    real = {"dataset": arguments.dataset, "root": arguments.root, "split_file": arguments.split_file}
    check_data(arguments, images)
    found = tables.overhead(arguments.backbone, arguments.rows, device(), rounds, images, **real)
    if arguments.output:
        save(arguments.output, "overhead", {**found, "settings": settings(arguments) | found["settings"]})
    if arguments.picture:
        tables.draw(arguments.picture, found)
    setting = f"SimGCD with {arguments.backbone} at 224 pixels, {arguments.rows} rows"
    print(f"{setting}; medians (of {rounds} rounds for steps), quartiles in brackets\n")
    for rows, table in (
        ("steps", tables.step_table), ("steps", tables.memory_table), ("evaluation", tables.evaluation_table),
        ("reference", tables.reference_table), ("epochs", tables.epoch_table), ("conceptor", solve_table), ("bars", tables.bar_table),
    ):  # fmt: skip
        if found[rows]:  # the bars are promised for one setting only
            print(markdown(table(found[rows])), "\n")
    print(markdown(tables.paper_table()))
    return 0


def check_data(arguments: argparse.Namespace, images: int) -> None:
    """The data set is there and large enough: `images` for the epochs, half of them labelled."""
    from eagc_ops.training.data import open_data

    if arguments.dataset is None:
        return
    given = f"--dataset {arguments.dataset}" + (
        " without --root" if arguments.root is None else f" --root {arguments.root}"
    )
    try:
        data = open_data(arguments.dataset, arguments.root, split_file=arguments.split_file)
    except (OSError, ValueError) as error:
        arguments.refuse(f"{given}: {error}")
    labelled, unlabelled = len(data.labelled), len(data.unlabelled)
    if min(labelled, unlabelled) < images // 2 or labelled + unlabelled < arguments.rows // 2:
        needs = (
            f"{images // 2} of each are needed, and {arguments.rows // 2} in all for --rows {arguments.rows}"
        )
        arguments.refuse(
            f"{given} has {labelled} labelled and {unlabelled} unlabelled images; {needs}: choose a larger one or fewer rows"
        )


def run_conceptor(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.conceptor import conceptor_tables, quality_table, time_table

    found = conceptor_tables(arguments.quick, device())
    if arguments.output:
        save(arguments.output, "conceptor", {**found, "settings": settings(arguments) | found["settings"]})
    print("S and Ebar from features, aperture 2\n")
    print(markdown(time_table(found["times"])), "\n")
    print(markdown(quality_table(found["quality"])))
    return 0


def run_all(arguments: argparse.Namespace) -> int:
    """One after the other; the throughput rows serve the picture too."""
    folder = arguments.output
    begin = time.perf_counter()

    def options(name: str, *more: str) -> argparse.Namespace:
        return parse(
            [name, "-o", str(folder / f"{name}.json"), *(["--quick"] if arguments.quick else []), *more]
        )

    for title, run, own in (
        ("The operator on a CPU", run_operator, options("operator")),
        ("Throughput", run_throughput, options("throughput")),
        (
            "Overhead of EAGC in a training step",
            run_overhead,
            options("overhead", "--picture", str(folder / "overhead.svg")),
        ),
        ("Conceptor", run_conceptor, options("conceptor")),
    ):
        print(f"\n## {title}\n", flush=True)
        run(own)
    print("\n## Roofline\n", flush=True)
    draw_roofline(
        options("roofline", "--picture", str(folder / "roofline.svg")),
        load(folder / "throughput.json")["throughput"],
    )
    print(f"\nresults and pictures: {folder}; {time.perf_counter() - begin:.0f} s")
    return 0


def run_compare(arguments: argparse.Namespace) -> int:
    from eagc_ops.bench.compare import compare, elsewhere, table

    try:
        a, b = load(arguments.a), load(arguments.b)
        changes = compare(a, b, arguments.threshold)
    except ValueError as error:
        print(f"eagc bench compare: {error}", file=sys.stderr)
        return 2
    if differing := elsewhere(a, b):
        print(
            f"note: machine or versions differ ({', '.join(differing)}): seconds and launches are shown but not judged",
            file=sys.stderr,
        )
    print(markdown(table(changes)))
    regressions = sum(change.regression for change in changes)
    compared = sum(change.ratio is not None for change in changes)
    print(f"\n{compared} measurements compared, {regressions} regressions beyond {arguments.threshold:.0%}")
    return 1 if regressions else 0


def share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1: it is a share, 0.1 is 10 %")
    return value


def run_aot(arguments: argparse.Namespace) -> int:
    from eagc_ops.kernels import aot

    results = aot.compile_all(list(aot.cases(subset=arguments.subset)), arguments.jobs)
    if arguments.output:
        save(arguments.output, "aot", {"cases": [aot.as_record(*result) for result in results]})
    print(aot.table(results))
    failed = [case for case, found in results if found.problems]
    print(f"\n{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def settings(arguments: argparse.Namespace) -> dict[str, object]:
    """What the results of two runs must have in common to be compared."""
    return {"quick": arguments.quick, "device": str(device()), "threads": torch.get_num_threads()}


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
