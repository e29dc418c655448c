"""The walk of one operator call, from the user's line to the kernel: a newcomer can follow it."""

import sys
from contextlib import contextmanager

import torch

from eagc_ops import EAGC, Subspace

LAST = {"triton": "_start", "torch": "compute", "fp64": "coordinated"}  # what computes or launches


@contextmanager
def paths():
    """Our functions on the way to each one that is entered, outermost first, as (file, name)."""
    found, here = [], []

    def follow(frame, event, _):
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if not module.startswith("eagc_ops.") or name.startswith("<"):
            return
        if event == "call":
            here.append((module.rpartition(".")[2], name))
            found.append(tuple(here))
        elif event == "return" and here:
            here.pop()

    sys.setprofile(follow)
    try:
        yield found
    finally:
        sys.setprofile(None)


def test_a_call_and_its_backward_pass_eight_functions(impl):
    eagc = EAGC(Subspace.conceptor(torch.randn(40, 16)), impl=impl)
    z, z_ref = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16)
    mask = torch.arange(8) % 2 == 0
    with paths() as forward:
        out = eagc(z, z_ref, mask)
    with paths() as backward:
        out.sum().backward()
    to_autograd = next(path for path in forward if path[-1] == ("autograd", "forward"))
    to_kernel = next(path for path in backward if path[-1][1] == LAST[impl])
    walk = [*to_autograd, *to_kernel]
    assert len(walk) <= 8, walk
    assert len(set(walk)) == len(walk), walk  # no verb twice in one file
