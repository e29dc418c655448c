"""What a call leaves alive: the storages that were made while it ran and still exist after it."""

import gc
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Made(TorchDispatchMode):
    """Notes every storage that an operation returns within the block; it sees nothing inside opaque ops."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                ref = StorageWeakRef(x.untyped_storage())
                self.storages[ref.cdata] = ref
        return out


def left_behind(call: Callable[[], Any], *known: Tensor | None) -> int:
    """How many new storages outlive `call()` once its results are gone; those of `known` are not new."""
    before = {StorageWeakRef(x.untyped_storage()).cdata for x in known if x is not None}
    gc.collect()
    with Made() as made:
        call()
    gc.collect()
    assert made.storages, "the call made no tensor that the mode could see"
    return sum(not ref.expired() for cdata, ref in made.storages.items() if cdata not in before)


def live_tensors() -> set[int]:
    """The ids of all tensors that Python's collector knows."""
    gc.collect()
    return {id(x) for x in gc.get_objects() if issubclass(type(x), Tensor)}
