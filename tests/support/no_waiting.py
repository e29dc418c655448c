"""A dispatch mode that shows where the host would wait for a GPU, inside the operator's opaque ops too."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from eagc_ops.library import BODIES

READS = (
    "item",
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique2",
    "equal",
)  # .item() is the first of them on meta tensors


class NoWaiting(TorchDispatchMode):
    """Raises on what would make the host wait for a GPU: reading a value, or an output whose size depends on
    values.

    The CPU path of the operator does both. A GPU's path runs on tensors of the meta device, without a GPU and
    without values.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if (
            func.namespace == "eagc"
        ):  # torch switches a mode off inside an opaque op: run its body under the mode
            with self:
                return BODIES[name](*args, **(kwargs or {}))
        # fresh.item() of a CPU constant made on the host would be fine on a GPU too; nothing here needs it
        assert name not in READS, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            assert not any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]), (
                "a boolean index waits for the device"
            )
        return func(*args, **(kwargs or {}))
