"""The processes of a distributed run watch one another: when one dies, the others end with a clear error.

Every process keeps a connection to the main one, on which nothing is sent. It closes when a process ends,
however it ends, and TCP's keep-alive closes it when a machine is gone. A limit on the time of a collective
would not do: it would also end a healthy run in which one process clusters or writes for minutes.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast

from eagc_ops.app import interrupts

__all__ = ["RankLostError", "agreement", "attended", "watch"]

GRACE = 5.0  # seconds in which the main thread may end by itself, as its collective fails too
CONNECT = 30.0  # seconds
_KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}  # 40 s of silence are a loss
_GOODBYE = b"."
_attended = False
_watch: _Watch | None = None


class RankLostError(RuntimeError):
    """A process of this distributed run has ended before its time."""


@contextlib.contextmanager
def attended() -> Iterator[None]:
    """Work in which this process watches the others, from the first `watch` on; within such work, nothing."""
    global _attended, _watch
    if _attended:
        yield
        return
    _attended, goodbye = True, b""
    try:
        yield
        goodbye = _GOODBYE
    except RuntimeError as error:
        # A collective that failed; an error of ours has its own message.
        foreign = not type(error).__module__.startswith("eagc_ops")
        if foreign and _watch is not None and _watch.loss.wait(GRACE):
            raise RankLostError(_watch.message) from error
        raise
    finally:
        if _watch is not None:
            _watch.close(goodbye)
        _watch, _attended = None, False


def watch(accelerator: Accelerator) -> None:
    """Connect this process with the others, once; nothing to do for one process, or outside of `attended`."""
    global _watch
    if _attended and _watch is None and accelerator.num_processes > 1:
        _watch = _Watch(accelerator)


def agreement(accelerator: Accelerator) -> Callable[[int], int]:
    """A function that all processes call in the same step: it returns the largest of their numbers to each.

    It does not wait for a GPU, only for the other hosts.
    """
    if accelerator.num_processes == 1:
        return int
    group: Any = None if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")

    def largest(number: int) -> int:
        shared = torch.tensor(number)
        dist.all_reduce(shared, dist.ReduceOp.MAX, group)
        return int(shared)

    return largest


class _Watch:
    """The connections of this process, and a thread for each that waits for its end."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._rank, self._world = accelerator.process_index, accelerator.num_processes
        self.loss, self.message = threading.Event(), ""
        self._closed = False
        self._connections: dict[int, socket.socket] = {}
        try:
            self._connect(accelerator.device)
        except OSError as error:
            warnings.warn(
                f"the processes of this run cannot watch one another ({error}): if one dies, end the others",
                stacklevel=4,
            )
        for rank in self._connections:
            threading.Thread(target=self._wait_for_the_end_of, args=(rank,), daemon=True).start()

    def close(self, goodbye: bytes) -> None:
        """End the connections; without a goodbye the others take it for a loss."""
        self._closed = True
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(goodbye)
                connection.shutdown(socket.SHUT_RDWR)  # also where a data worker inherited the socket
            connection.close()

    def _connect(self, device: torch.device) -> None:
        server = socket.create_server(("", 0), backlog=self._world) if self._rank == 0 else None
        port = server.getsockname()[1] if server else 0
        port = int(broadcast(torch.tensor(port, device=device)))
        if server is None:
            connection = socket.create_connection((os.environ["MASTER_ADDR"], port), CONNECT)
            connection.sendall(struct.pack("!i", self._rank))
            self._keep(connection, 0)
            return
        with server:
            server.settimeout(CONNECT)
            while len(self._connections) < self._world - 1:
                connection, _ = server.accept()
                self._keep(connection, *struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL)))

    def _keep(self, connection: socket.socket, rank: int) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connections[rank] = connection

    def _wait_for_the_end_of(self, rank: int) -> None:
        try:
            ended = self._connections[rank].recv(1) != _GOODBYE
        except OSError:
            ended = True
        if not ended or self._closed:
            return
        self.message = (
            f"process {rank} of {self._world} has ended, and process {self._rank} cannot go on without it; "
            f"to go on: {interrupts.how_to_go_on()}"
        )
        self.loss.set()
        time.sleep(GRACE)
        if not self._closed:  # the main thread computes, or waits for a process that is gone
            print(f"\neagc: {self.message}", file=sys.stderr, flush=True)  # below a progress bar
            os._exit(2)
