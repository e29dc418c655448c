"""Memory of a training step, counted from the storages of its tensors.

A CPU allocator keeps no count. A view keeps its whole storage alive, and two tensors on one storage count
once. On a GPU, `steps.Step.memory` takes the peak from the CUDA allocator instead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Memory:
    """Bytes of one step.

    `saved` is kept by forward for backward. `peak` is the most that was alive at once, without the batch.
    """

    parameters: int
    optimizer: int
    saved: int
    peak: int

    @property
    def kept(self) -> int:
        return self.parameters + self.optimizer + self.saved


def resident(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def optimizer_state(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [
        value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    ]


class Saved(saved_tensors_hooks):
    """Counts the bytes of storages that are saved for backward within the block, except those of `besides`.

    >>> x, w = torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
    >>> with Saved(besides=[w]) as saved:
    ...     loss = (x @ w).sum()
    >>> saved.bytes  # x; w is in `besides`
    128
    """

    def __init__(self, besides: Iterable[Tensor] = ()) -> None:
        self._known = {_storage(tensor)[0] for tensor in besides}
        self._kept: dict[int, int] = {}
        super().__init__(self._pack, lambda tensor: tensor)

    def __enter__(self) -> Saved:  # type: ignore[override]  # torch's returns nothing
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        return sum(self._kept.values())

    def _pack(self, tensor: Tensor) -> Tensor:
        address, length = _storage(tensor)
        if address not in self._known:
            self._kept[address] = length
        return tensor


class Alive(TorchDispatchMode):
    """`peak` is the most bytes of new storages alive at once within the block; `besides` is not counted.

    Memory that an operation allocates and frees inside itself is not seen. On the steps measured here, the
    figure equals the peak that torch's memory profiler reports, to the byte.

    >>> with Alive() as alive:
    ...     for _ in range(10):
    ...         x = torch.ones(256)  # each is made before the previous one is freed
    >>> alive.peak
    2048
    """

    def __init__(self, besides: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._known: dict[int, weakref.ref | None] = dict.fromkeys(_storage(tensor)[0] for tensor in besides)
        self._now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, length = storage.data_ptr(), storage.nbytes()
        if address in self._known or length == 0:
            return

        def gone(_: weakref.ref) -> None:
            self._now -= length
            del self._known[address]

        self._known[address] = weakref.ref(storage, gone)
        self._now += length
        self.peak = max(self.peak, self._now)


def measure_step(
    forward: Callable[[], Tensor], finish: Callable[[Tensor], None], held: list[Tensor], inputs: list[Tensor]
) -> tuple[int, int]:
    """(bytes saved, most bytes alive) of one step, without `held` and `inputs`.

    `forward()` returns the loss; `finish(loss)` does the rest of the step.
    """
    besides = [*held, *inputs]
    with Alive(besides) as alive:
        with Saved(besides) as saved:
            loss = forward()
        finish(loss)
    return saved.bytes, alive.peak


def size(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    return sum(dict(_storage(tensor) for tensor in tensors).values())


def _storage(tensor: Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()
