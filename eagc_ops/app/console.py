"""The parser of every command of `eagc`, and the way errors and warnings reach the user.

Exit codes: 0 success; 1 the command ran, but a run diverged or a check failed; 2 the command line, a file or
the environment is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from . import interrupts
from .files import DiskFullError

if TYPE_CHECKING:
    from tqdm import tqdm

Main = Callable[[list[str]], int]
T = TypeVar("T")
N = TypeVar("N", int, float)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser without abbreviations, whose errors are one line and name the nearest option."""

    completer: ClassVar[Callable[[argparse.ArgumentParser], None] | None] = None

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        if Parser.completer is not None:  # a shell asks for completions: the answer ends the process
            Parser.completer(self)
        return super().parse_args(args, namespace)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse also calls this on a sub-command's parser, so each parser refuses its own unknown options.
        arguments, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0], sys.argv[1:] if args is None else list(args))
        return arguments, unknown

    def _refuse(self, word: str, words: list[str]) -> NoReturn:
        before = words[words.index(word) - 1] if word in words[1:] else ""
        if not word.startswith("-"):
            if before in self._option_string_actions:
                self.error(f"{before} takes no value, got {word!r}; leave it out")
            self.error(f"unexpected word {word!r}; see {self.prog} --help")
        name = word.split("=")[0]
        nearest = difflib.get_close_matches(name, self._option_string_actions, 1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"see {self.prog} --help"
        self.error(f"unknown option {name}; {hint}")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message).removeprefix('argument ')}\n")


def command(name: str, words: Callable[[Exception], str] = str) -> Callable[[Main], Main]:
    """Decorate a command's main function so that errors for the user are printed in one line.

    An error that the user can correct gives exit code 2. A run that diverged (FloatingPointError) gives exit
    code 1, Ctrl-C 130 and a line that says how to go on. A warning is printed in one line. `words` turns an
    error of exit code 2 into its text.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def run(argv: list[str]) -> int:
            with plain_warnings():
                try:
                    return main(argv)
                except KeyboardInterrupt as interrupt:
                    interrupts.end_line_of_bar(interrupt)
                except FloatingPointError as error:
                    return _fail(name, error, 1)
                except DiskFullError as error:
                    return _fail(name, f"{error}, then go on: {interrupts.how_to_go_on()}", 2)
                except BrokenPipeError:
                    raise  # `cli` knows whose it is
                except Exception as error:
                    if not interrupts.seen():
                        if not is_for_the_user(error):
                            raise
                        return _fail(name, words(error), 2)
            # After the frames of the work are gone, and with them their progress bars
            return interrupts.leave(name)

        return run

    return decorate


def path(text: str) -> Path:
    """The `type` of an option that names a folder or a file.

    An empty name, most often that of a shell variable that is not set, would stand for the current folder.

    >>> path("")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: is empty: name a path, or leave the option out
    """
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty: name a path, or leave the option out")
    return Path(text).expanduser()  # a shell leaves the ~ of --output=~/runs as it is


def plain_number(kind: type[N], text: str) -> N:
    """The number that `text` writes in ASCII digits; a ValueError for the other ways that Python reads.

    >>> plain_number(int, "1000")
    1000
    >>> plain_number(int, "1_000")
    Traceback (most recent call last):
    ValueError: 1_000
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return kind(text)


def whole_number(
    least: int = 1, most: int = 10**9, multiple_of: int = 1, why: str = ""
) -> Callable[[str], int]:
    """The `type` of an option that takes a whole number; `why` explains the lower limit in the error.

    >>> whole_number(least=1)("3")
    3
    >>> whole_number(least=4, multiple_of=4, why="two views of two images")("6")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: must be a positive multiple of 4, got 6 (two views of two images)
    """
    wanted = f"a whole number >= {least}" if multiple_of == 1 else f"a positive multiple of {multiple_of}"

    def read(text: str) -> int:
        try:
            value = plain_number(int, text)
        except ValueError:  # no number, or one of thousands of digits
            value = least - 1
        if value > most:
            raise argparse.ArgumentTypeError(f"must be <= {most:,}, got {text}")
        if value < least or value % multiple_of:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text}{why and f' ({why})'}")
        return value

    return read


def bar(items: Iterable[T], what: str, total: int | None = None) -> Iterable[T]:
    """The items, with a progress bar where someone watches standard error and tqdm is installed."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:  # it belongs to the extra `train`
        return items
    return tqdm(items, what, total, leave=False, disable=None)


def say(line: str) -> None:
    """Print a line, above the progress bar if there is one."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        print(line, flush=True)
    else:
        tqdm.write(line)


def one_line(message: object) -> str:
    """The message with every stretch of white space replaced by one space."""
    return " ".join(str(message).split())


@contextlib.contextmanager
def plain_warnings(of: str = "") -> Iterator[None]:
    """Print every warning in one line, with the name of what it is about, if there is one."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        print(f"warning: {of and f'{of}: '}{one_line(message)}", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def is_for_the_user(error: BaseException) -> bool:
    """Whether the message was written for the user; any other error is a bug, and its traceback must be seen.

    Messages for the user come from the operating system or from this package: an error class of ours, or a
    ValueError or TypeError raised in our code.
    """
    if isinstance(error, OSError) or type(error).__module__.startswith("eagc_ops"):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return isinstance(error, (ValueError, TypeError)) and raised_in.startswith("eagc_ops")


def _fail(name: str, message: object, code: int) -> int:
    print(f"{name}: {one_line(message)}", file=sys.stderr)
    return code


def progress_bar(*args: Any, shown: bool = True, **settings: Any) -> tqdm:
    """A tqdm bar that can be hidden, for all but one of several processes.

    `disable` is passed only to hide the bar: disable=False would override TQDM_DISABLE, with which `run_jobs`
    silences its processes.
    """
    from tqdm import tqdm  # commands without a bar do not need it

    return tqdm(*args, **settings, **({} if shown else {"disable": True}))
