"""Ctrl-C: one line that says how to go on, exit code 130, no traceback, no process left behind.

`handled` is for the command line. Ctrl-C raises KeyboardInterrupt, except in an import, where an exception
could get lost: there the process leaves at once. `unaware_children` and `deferred` are for the working code.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

EXIT_CODE = 130
_name = "eagc"
_command: Callable[[], str] = lambda: "the same command"  # noqa: E731
_seen = _leaving = False


@contextlib.contextmanager
def handled(words: Sequence[str]) -> Iterator[None]:
    """Handle Ctrl-C for the command `words`, which is also what the line tells the user to run again."""
    global _name, _seen, _leaving
    _name, _seen, _leaving = " ".join(words[:2]), False, False
    before = _command
    go_on_with(lambda: shlex.join(words))
    # A process that was started to ignore Ctrl-C (nohup) goes on ignoring it.
    if not _in_main_thread() or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        go_on_with(before)
        return
    hook, sys.unraisablehook = sys.unraisablehook, _redeliver
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        yield
    finally:
        go_on_with(before)
        if not _leaving:
            sys.unraisablehook = hook
            signal.signal(signal.SIGINT, signal.default_int_handler)


def go_on_with(command: Callable[[], str]) -> None:
    """Set the command that continues the work; it is asked for when it is needed."""
    global _command
    _command = command


def how_to_go_on() -> str:
    """The command that continues the work."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return _command() + (", with the launcher of before" if launched else "")


def seen() -> bool:
    """Whether Ctrl-C was pressed: an error that follows is only its consequence."""
    return _seen


def leave(name: str) -> int:
    """Print the one line and return the exit code. From then on, Ctrl-C ends the process at once."""
    global _leaving
    _leaving, handler = True, signal.signal(signal.SIGINT, signal.SIG_IGN)  # pressed again: the line is whole
    if os.environ.get("RANK", "0") == "0":
        print(f"{name}: interrupted; to go on: {how_to_go_on()}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGINT, handler)
    return EXIT_CODE


def end_line_of_bar(interrupt: KeyboardInterrupt) -> None:
    """If Ctrl-C met a progress bar that was being drawn, its line has no end: end it."""
    frames = (frame for frame, _ in traceback.walk_tb(interrupt.__traceback__))
    if any(frame.f_globals.get("__name__", "").startswith("tqdm.") for frame in frames):
        print(file=sys.stderr, flush=True)


@contextlib.contextmanager
def unaware_children() -> Iterator[None]:
    """Processes that are started here do not receive the terminal's Ctrl-C: their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a child inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Ctrl-C here is noted, and raised at the end; a second one is raised at once.

    Yields a function that says whether to stop. SIGTERM is noted too where Python handles it.
    """
    noted: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if noted.count(signal.SIGINT) > 1:
            before[number](number, frame)

    for number in (signal.SIGINT, signal.SIGTERM) if _in_main_thread() else ():
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, note)
    try:
        yield lambda: bool(noted)
    except OSError:
        raise  # as a full disk: worth more than the line about Ctrl-C
    except Exception as error:
        if noted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
    if noted:
        raise KeyboardInterrupt


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    global _seen
    if _leaving:
        os._exit(EXIT_CODE)
    _seen = True
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            leave(_name)
            _kill_children()
            os._exit(EXIT_CODE)
        frame = frame.f_back
    raise KeyboardInterrupt


def _redeliver(unraisable: Any) -> None:
    """A KeyboardInterrupt that was raised where exceptions get lost (destructor, C callback) comes again.

    Other errors after Ctrl-C are its consequences, as of the destructor of an object that is half made.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        # A signal, as `_thread.interrupt_main` would not wake a main thread that waits.
        again = (threading.main_thread().ident, signal.SIGINT)
        threading.Timer(0.05, signal.pthread_kill, again).start()
    elif not _seen:
        sys.__unraisablehook__(unraisable)


def _kill_children() -> None:
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
