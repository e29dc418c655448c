"""Ctrl-C, SIGTERM and SIGUSR2: the work is saved, one line says how to go on, no process is left behind.

SIGTERM is what Slurm, Kubernetes and spot machines send before they kill; SIGUSR2 is what submitit has Slurm
send. The exit code is 128 + the signal's number: 130, 143 and 140. A handler of SIGUSR2 that was there
before, as submitit's, is called when the work is saved: it decides what happens next. A handler of SIGTERM
that was there before stays: submitit's ignores the signal.

`handled` is for the command line. A signal raises KeyboardInterrupt, except in an import, where an exception
could get lost: there the process leaves at once. `unaware_children` and `deferred` are for the working code.
"""

from __future__ import annotations

import _thread
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

__all__ = [
    "SIGNALS",
    "deferred",
    "end_line_of_bar",
    "go_on_with",
    "handled",
    "how_to_go_on",
    "leave",
    "seen",
    "unaware_children",
]

# Windows has no SIGUSR2, and its SIGTERM only comes from within the process.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR2") if hasattr(signal, name))
_AT_START = {signal.SIGINT: signal.default_int_handler}  # of Python; SIG_DFL for the others
_name = "eagc"
_command: Callable[[], str] = lambda: "the same command"  # noqa: E731
_seen = 0  # the first signal
_leaving = False
_before: dict[int, Any] = {}  # handlers that `handled` replaced


@contextlib.contextmanager
def handled(words: Sequence[str]) -> Iterator[None]:
    """Handle signals for the command `words`, which is also what the line tells the user to run again."""
    global _name, _seen, _leaving
    _name, _seen, _leaving = " ".join(words[:2]), 0, False
    before = _command
    go_on_with(lambda: shlex.join(words))
    _before.clear()
    for number in SIGNALS if _in_main_thread() else ():
        handler = signal.getsignal(number)
        # A process that was started to ignore Ctrl-C (nohup) goes on ignoring it.
        if handler is _AT_START.get(number, signal.SIG_DFL) or (_is_usr2(number) and callable(handler)):
            _before[number] = handler
            signal.signal(number, _on_signal)
    hook = sys.unraisablehook
    if signal.SIGINT in _before:
        sys.unraisablehook = _redeliver
    try:
        yield
    finally:
        go_on_with(before)
        if not _leaving:
            sys.unraisablehook = hook
            for number, handler in _before.items():
                signal.signal(number, handler)


def go_on_with(command: Callable[[], str]) -> None:
    """Set the command that continues the work; it is asked for when it is needed."""
    global _command
    _command = command


def how_to_go_on() -> str:
    """The command that continues the work."""
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    return _command() + (", with the launcher of before" if launched else "")


def seen() -> bool:
    """Whether a signal has come: an error that follows is only its consequence."""
    return bool(_seen)


def leave(name: str) -> int:
    """Print the one line and return the exit code. From then on, a signal ends the process at once.

    A handler of SIGUSR2 that was there before is called first, and may never return.
    """
    global _leaving
    number = _seen or signal.SIGINT
    _leaving = True
    handlers = {one: signal.signal(one, signal.SIG_IGN) for one in _before}  # again: the line is whole
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    if os.environ.get("RANK", "0") == "0":
        print(f"{name}: interrupted{by}; to go on: {how_to_go_on()}", file=sys.stderr, flush=True)
    for one, handler in handlers.items():
        signal.signal(one, handler)
    if callable(handler := _before.get(number)) and number != signal.SIGINT:
        handler(number, None)
    return 128 + number


def end_line_of_bar(interrupt: KeyboardInterrupt) -> None:
    """If a signal met a progress bar that was being drawn, its line has no end: end it."""
    frames = (frame for frame, _ in traceback.walk_tb(interrupt.__traceback__))
    if any(frame.f_globals.get("__name__", "").startswith("tqdm.") for frame in frames):
        print(file=sys.stderr, flush=True)


@contextlib.contextmanager
def unaware_children() -> Iterator[None]:
    """Processes that are started here do not receive the terminal's Ctrl-C: their parent ends them.

    Nor SIGUSR2, which Slurm sends to all processes of a step.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    theirs = {signal.SIGINT, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, theirs)  # a child inherits it
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def deferred(agree: Callable[[int], int] = int) -> Iterator[Callable[[], bool]]:
    """A signal here is noted, and handled at the end; a second Ctrl-C is handled at once.

    Yields a function that says whether to stop. Signals are noted that end this process by an exception, and
    SIGUSR2 if anything handles it. The processes of a distributed run must stop together: `agree` turns the
    number of the signal that this one has noted (0: none) into that on which all of them agree.
    """
    noted: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        if noted.count(signal.SIGINT) > 1:
            before[number](number, frame)

    def stop() -> bool:
        agreed = agree(noted[0] if noted else 0)
        if agreed and not noted:
            noted.append(agreed)
        return bool(agreed)

    for number in SIGNALS if _in_main_thread() else ():
        handler = signal.getsignal(number)
        if callable(handler) and (
            handler in (_on_signal, signal.default_int_handler) or number == signal.SIGINT or _is_usr2(number)
        ):
            before[number] = handler
            signal.signal(number, note)
    try:
        yield stop
    except OSError:
        raise  # as a full disk: worth more than the line about a signal
    except Exception as error:
        if noted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
    if noted:
        _handle(noted[0], before)


def _handle(number: int, handlers: dict[int, Any]) -> None:
    """What the handler of a noted signal does; work that was stopped ends all the same."""
    global _seen
    if handlers.get(number, _on_signal) is not _on_signal:
        handlers[number](number, None)
    _seen = _seen or number
    raise KeyboardInterrupt


def _on_signal(number: int, frame: FrameType | None) -> None:
    global _seen
    if _leaving:
        os._exit(128 + number)
    _seen = _seen or number
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            code = leave(_name)
            _kill_children()
            os._exit(code)
        frame = frame.f_back
    raise KeyboardInterrupt


def _redeliver(unraisable: Any) -> None:
    """A KeyboardInterrupt that was raised where exceptions get lost (destructor, C callback) comes again.

    Other errors after a signal are its consequences, as of the destructor of an object that is half made.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        threading.Timer(0.05, _send_again).start()
    elif not _seen:
        sys.__unraisablehook__(unraisable)


def _send_again() -> None:
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        # A signal, as `_thread.interrupt_main` would not wake a main thread that waits.
        signal.pthread_kill(main, _seen or signal.SIGINT)
    else:
        _thread.interrupt_main()


def _is_usr2(number: int) -> bool:
    return number == getattr(signal, "SIGUSR2", None)


def _kill_children() -> None:
    if "multiprocessing" in sys.modules:
        for child in sys.modules["multiprocessing"].active_children():
            child.kill()


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
