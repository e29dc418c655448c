"""Processes for the fault suite that are forked after the imports are done, so that a trial costs no imports.

`Nursery` starts this file as a process. It forks a child for every job: a function of this file and its
arguments. A child has a session of its own, so that a test can send it what a terminal would send.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch


class Child:
    """A forked child: `pid` is also its session and its process group."""

    def __init__(self, nursery: "Nursery", pid: int, errors: Path) -> None:
        self.nursery, self.pid, self._errors = nursery, pid, errors

    def wait(self) -> int:
        """The exit code; -9 after a SIGKILL."""
        return self.nursery.ask("wait", self.pid)

    def ended(self) -> bool:
        """Whether it has ended; its exit code is then still to be asked for."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal the whole group, as a terminal does."""
        os.killpg(self.pid, number)

    def wait_until(self, condition) -> None:
        """Until `condition()` holds; the child must not end before."""
        while not condition():
            assert not self.ended(), f"it ended with {self.wait()}: {self.errors}"
            time.sleep(0.01)

    def wait_at_most(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.ended():
            assert time.monotonic() < until, f"it still runs after {seconds} s: {self.errors}"
            time.sleep(0.05)

    @property
    def errors(self) -> str:
        """What it wrote to stderr, without progress bars."""
        written = self._errors.read_text() if self._errors.exists() else ""
        return "\n".join(without_bars(written))


class Nursery:
    """Forks children after the imports are done."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def start(self, function: str, *arguments, env: dict[str, str] | None = None) -> Child:
        """A child that calls a function of this file with JSON-ready arguments."""
        self._count += 1
        errors = self._folder / f"errors{self._count}.txt"
        return Child(self, self.ask("start", function, arguments, str(errors), env or {}), errors)

    def run(self, function: str, *arguments) -> Child:
        """A child that must succeed."""
        child = self.start(function, *arguments)
        code = child.wait()
        assert code == 0, child.errors[-3000:]
        return child

    def ask(self, *question):
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        # Closing its input is not enough: a worker process that a failed test keeps holds a copy of the pipe.
        self._process.terminate()
        self._process.communicate()


def without_bars(text: str) -> list[str]:
    """The lines of stderr, without progress bars."""
    lines = text.replace("\r", "\n").split("\n")
    bar = re.compile(r"\d+%\||\d+\w*/s\]|s/\w+\]|\?\w+/s")
    return [line for line in lines if line.strip() and not bar.search(line)]


def cpu_seconds(*pids: int) -> float:
    """CPU time of processes so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(of) == leader and state != "Z":
                    found.append(int(entry.name))
    return found


# Jobs of the children ---------------------------------------------------------------------------------------


def go_on(config: dict, output: str) -> None:
    """What a user does again and again until it is done: train, or resume."""
    from eagc_ops.evidence.jobs import Job, run_job
    from eagc_ops.training.config import from_json

    run_job(Job(from_json(config), Path(output), {}))


def rank(config: dict, output: str) -> None:
    """One process of a distributed run, with the errors of the command line."""
    from eagc_ops.app import interrupts
    from eagc_ops.app.console import command

    @command("eagc train")
    def main(_: list[str]) -> int:
        go_on(config, output)
        return 0

    with interrupts.handled(["eagc", "train"]):
        sys.exit(main([]))


def discovery_rank(photos: str, output: str, settings: dict, told: str, fault: str | None) -> None:
    """One process of a discovery, with the errors of the command line.

    What it says is in `told`.txt, what it returns in `told`.json, the classifiers with which its trainings
    start in `told`.pt. `fault`: it "waits" instead of writing the first page, "diverges" in its training, or
    "fails" after it.
    """
    from eagc_ops.app import interrupts
    from eagc_ops.app.console import command
    from eagc_ops.discovery import discovery, training

    started, starts = training._start_prototypes, []

    def start(experiment, categories) -> None:
        started(experiment, categories)
        starts.append(experiment.student.method.classifier.weight.detach().clone())
        torch.save(starts, f"{told}.pt")

    def wait(*_) -> None:
        Path(f"{told}.waits").touch()
        time.sleep(1000)

    def fail(*_) -> None:
        raise OSError("this process has no disk")

    def say(line: str) -> None:
        with open(f"{told}.txt", "a") as file:
            file.write(line + "\n")

    training._start_prototypes = start
    if fault == "waits":
        discovery._written = wait
    if fault == "diverges":
        from eagc_ops.training.engine.metrics import Meter

        Meter.read = lambda self: {"loss": float("nan")}
    if fault == "fails":
        training._looked_at = fail

    @command("eagc discover")
    def main(_: list[str]) -> int:
        found = discovery.discover(f"{photos}/labelled", f"{photos}/new", output, say=say, **settings)
        Path(f"{told}.json").write_text(json.dumps(found))
        return 0

    with interrupts.handled(["eagc", "discover"]):
        sys.exit(main([]))


def encoder(file: str) -> None:
    from eagc_ops.training.data import open_data
    from eagc_ops.training.engine.pretraining import pretrained_encoder

    pretrained_encoder(Path(file), open_data("digits"), epochs=1)


def build_cache(directory: str) -> None:
    from small_caches import make_data, make_encoder

    from eagc_ops.training.data.trunk_cache import trunk_cache

    trunk_cache(directory, make_encoder(), make_data(), views=3, batch_size=4, progress=False)


def build_cache_blindly(directory: str) -> None:
    import collections
    import shutil

    usage = collections.namedtuple("usage", "total used free")
    shutil.disk_usage, original = lambda path: usage(1 << 40, 0, 1 << 40), shutil.disk_usage
    try:
        build_cache(directory)
    finally:
        shutil.disk_usage = original


def die_in_write(point: str, number: int, function: str, *arguments) -> None:
    """Call a function, and be killed in its write number `number` (1, 2, ...) at a point of `POINTS`."""
    from eagc_ops.app import files

    writes, original = [0], {"fsync": os.fsync, "replace": os.replace}

    def die(here: str) -> None:
        if writes[0] == number and point == here:
            os.kill(os.getpid(), signal.SIGKILL)

    class Half:
        """A file that dies half-way through a write."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, content):
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            die("half-way")
            self.file.write(content[len(content) // 2 :])

    def counted_open(*arguments, **options):
        writes[0] += 1
        die("before the write")
        return Half(open(*arguments, **options))

    def fsync(descriptor):
        die("before fsync")
        original["fsync"](descriptor)

    def replace(*arguments):
        die("before the rename")
        original["replace"](*arguments)
        die("after the rename")

    files.open, os.fsync, os.replace = counted_open, fsync, replace
    globals()[function](*arguments)
    if number == 0:  # only count
        Path(arguments[-1]).with_name("writes").write_text(str(writes[0]))


POINTS = ("before the write", "half-way", "before fsync", "before the rename", "after the rename")


def eagc(*words: str) -> None:
    """The command line."""
    from eagc_ops.app.cli import main

    sys.argv = ["eagc", *words]
    sys.exit(main(list(words)))


def several_runs(configs: list[dict], folder: str) -> None:
    """Runs in two processes, as `eagc table` trains them."""
    from eagc_ops.app import interrupts
    from eagc_ops.app.console import command
    from eagc_ops.evidence.jobs import Job, run_job, run_jobs
    from eagc_ops.training.config import from_json

    jobs = [Job(from_json(config), Path(folder) / f"run{i}", {}) for i, config in enumerate(configs)]

    @command("eagc table")
    def main(_: list[str]) -> int:
        return sum(isinstance(result, Exception) for _, result in run_jobs(jobs, 2, run_job))

    with interrupts.handled(["eagc", "table"]):
        sys.exit(main([]))


def on_a_small_disk(size: int, folder: str, function: str, *arguments) -> None:
    """Call a function with `folder` on a disk of `size` bytes; then again with room.

    What the error of the first call said is in `folder`.said; the folder's content is left in `folder`.after.
    """
    import shutil

    private_mounts()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        globals()[function](*arguments)
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    Path(f"{folder}.said").write_text(said)
    mount("-o", f"remount,size={1 << 28}", folder)
    globals()[function](*arguments)
    shutil.copytree(folder, f"{folder}.after")


def read_only(folder: str, function: str, *arguments) -> None:
    """Call a function while `folder` cannot be written, not even by root."""
    private_mounts()
    mount("--bind", folder, folder)
    mount("-o", "remount,ro,bind", folder)
    globals()[function](*arguments)


CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000


def private_mounts() -> None:
    """Mounts of this process from now on are seen by nobody else, and end with it."""
    libc, user = ctypes.CDLL(None, use_errno=True), os.getuid()
    if libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    mount("--make-rprivate", "/")


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def mounts_are_possible() -> bool:
    """Whether a process may make mounts of its own here."""
    return subprocess.run([sys.executable, __file__, "private_mounts"], capture_output=True).returncode == 0


def main() -> None:
    import small_runs  # noqa: F401  (registers the small methods, and imports everything a run needs)

    torch.set_num_threads(1)
    for line in sys.stdin:
        what, *rest = json.loads(line)
        if what == "wait":
            answer = os.waitstatus_to_exitcode(os.waitpid(rest[0], 0)[1])
        else:
            function, arguments, errors, env = rest
            answer = os.fork()
            if answer == 0:
                child(function, arguments, errors, env)
        print(json.dumps(answer), flush=True)


def child(function: str, arguments: list, errors: str, env: dict[str, str]) -> None:
    code = 1
    try:
        os.setsid()
        with open(errors, "w") as file, open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(env)
        globals()[function](*arguments)
        code = 0
    except SystemExit as exit:
        code = exit.code
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    private_mounts() if sys.argv[1:] == ["private_mounts"] else main()
