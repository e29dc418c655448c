"""Find the fastest tile of the fused kernel for one shape on this GPU, and keep it.

The search goes beyond the launch table. It compiles each tile for both kernels, leaves out those that the
compile gate refuses (register spills, too much shared memory, ...), times the others, and leaves out those
whose result is wrong. Calls of that shape on this GPU use the fastest from then on.
"""

from __future__ import annotations

from ..app.console import Parser, command, whole_number

DTYPES = ("fp32", "bf16", "fp16")
PRECISIONS = ("auto", "high", "tf32x3", "tf32")


@command("eagc tune")
def main(argv: list[str]) -> int:
    parser = Parser(prog="eagc tune", description=__doc__)
    rows, dim = whole_number(most=10**7), whole_number(most=10**5)
    parser.add_argument(
        "--rows", type=rows, default=256, metavar="N", help="rows of a batch, two per image [256]"
    )
    parser.add_argument("--dim", type=dim, default=768, metavar="D", help="width of the features [768]")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="dtype of the features [bf16]")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="auto", help="as in EAGC(precision=...) [auto]"
    )
    parser.add_argument("--device", default="cuda", metavar="NAME", help="the GPU to tune for [cuda]")
    arguments = parser.parse_args(argv)
    if arguments.device.split(":")[0] != "cuda":
        parser.error(f"--device {arguments.device} is no GPU; choose cuda, cuda:0, ...")
    if arguments.precision.startswith("tf32") and arguments.dtype != "fp32":
        parser.error(f"--precision {arguments.precision} is for --dtype fp32, not {arguments.dtype}")

    import torch  # it takes seconds: --help and wrong options do not wait for it

    from .. import kernels
    from . import tune

    if not torch.cuda.is_available():
        parser.error("needs a GPU, and torch sees none on this machine")
    try:
        device = torch.device("cuda", torch.device(arguments.device).index or 0)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        parser.error(f"--device {arguments.device} cannot be used: {str(error).splitlines()[0]}")
    if reason := kernels.why_not_triton(device, kernels.DTYPES[arguments.dtype]):
        parser.error(f"the Triton kernel cannot run here: {reason}")
    shape = tune.Shape(arguments.rows, arguments.dim, arguments.dtype, arguments.precision)
    print(f"tuning for {shape.rows} x {shape.dim} {shape.dtype} on {torch.cuda.get_device_name(device)}")
    found = tune.search(shape, device, tune.gpu_seconds)
    for tile in sorted(found.seconds, key=found.seconds.__getitem__)[:5]:
        print(f"{found.seconds[tile] * 1e6:9.1f} us  {tile}{'  (table)' if tile == found.table else ''}")
    print(f"{len(found.seconds)} tiles timed; kept in {tune.keep(shape, device, found)}")
    return 0
