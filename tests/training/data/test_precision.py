"""Mixed precision is chosen where the machine multiplies it, and the trunk of a cache runs in it."""

import pytest
import torch

from eagc_ops.training.data import precision
from eagc_ops.training.data.precision import autocast, fast_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [({"avx512_bf16": True}, "bf16"), ({"amx_bf16": True}, "bf16"), ({"avx2": True}, "no"), ({}, "no")],
)
def test_bf16_needs_instructions_for_it(monkeypatch, capabilities, fast):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert fast_precision(CPU) == fast


def test_instructions_that_are_announced_and_not_permitted(monkeypatch):
    def refuse(*_):
        raise RuntimeError("could not create a primitive")

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setattr(torch.nn.functional, "linear", refuse)
    assert fast_precision(CPU) == "no"


def test_a_torch_that_does_not_tell(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert precision.fast_precision(CPU) == "no"


def test_autocast_of_a_setting():
    x = torch.ones(2, 2)
    for name, dtype in (("no", torch.float32), ("bf16", torch.bfloat16)):
        with autocast(CPU, name):
            assert (x @ x).dtype == dtype
