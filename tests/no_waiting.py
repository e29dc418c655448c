"""A dispatch mode that shows where the host would wait for a GPU. It cannot see inside an opaque op: run the raw code under it."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoWaiting(TorchDispatchMode):
    """Raises on what would make the host wait for a GPU: reading a value, or an output whose size depends on values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        # fresh.item() of a CPU constant made on the host would be fine on a GPU too; nothing here needs it
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "unique2", "equal"), f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            assert not any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]), "a boolean index waits for the device"
        return func(*args, **(kwargs or {}))
