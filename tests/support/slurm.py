"""A Slurm of one machine, on the loopback address: munge, one controller, one node with two made-up GPUs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
CONTROLLER, NODE = 16817, 16818
CONFIGURATION = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
SlurmctldPort={controller}
SlurmdPort={node}
ReturnToService=2
JobRequeue=1
KillWait=2
MinJobAge=300
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    lacking = [name for name in PROGRAMS if shutil.which(name) is None and not _in_sbin(name).exists()]
    if lacking:
        return f"no {', '.join(lacking)} (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "Slurm's daemons run as root here"


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[None]:
    """The environment variable SLURM_CONF names a Slurm that runs until the end."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    file, host = folder / "slurm.conf", socket.gethostname()
    file.write_text(CONFIGURATION.format(folder=folder, host=host, controller=CONTROLLER, node=NODE))
    for name in ("gpu0", "gpu1"):  # any file may stand for a device
        (folder / name).touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    environment = {**os.environ, "SLURM_CONF": str(file)}
    before = os.environ.get("SLURM_CONF")
    started: list[Path] = []
    try:
        _munge(folder)
        started.append(folder / "munged.pid")
        for name, pid in (("slurmctld", "ctld.pid"), ("slurmd", "d.pid")):
            subprocess.run([str(_in_sbin(name))], env=environment, check=True, timeout=60)
            started.append(folder / pid)
        os.environ["SLURM_CONF"] = str(file)
        _wait_until_idle()
        yield
    finally:
        if "SLURM_CONF" in os.environ:
            subprocess.run(["scancel", "--me"], capture_output=True, timeout=60)
        for pid in reversed(started):
            _end(pid)
        os.environ.pop("SLURM_CONF", None)
        if before is not None:
            os.environ["SLURM_CONF"] = before


@contextlib.contextmanager
def hurry() -> Iterator[None]:
    """Jobs that are given back start again at once; Slurm makes them wait for two minutes."""
    end = threading.Event()

    def start_now() -> None:
        while not end.wait(1):
            words = ["squeue", "--me", "--noheader", "--array", "--states=PD", "--format=%i"]
            waiting = subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.split()
            for number in waiting:
                now = ["scontrol", "update", f"JobId={number}", "StartTime=now"]
                subprocess.run(now, capture_output=True, timeout=60)

    thread = threading.Thread(target=start_now)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _munge(folder: Path) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    places = {name: folder / f"munge.{name}" for name in ("socket", "log", "seed")}
    words = [str(_in_sbin("munged")), "--force", f"--key-file={key}", f"--pid-file={folder / 'munged.pid'}"]
    words += [
        f"--{'log-file' if name == 'log' else 'seed-file' if name == 'seed' else name}={file}"
        for name, file in places.items()
    ]
    subprocess.run(words, check=True, timeout=60, capture_output=True)


def _wait_until_idle() -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        asked = subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, timeout=60)
        if "idle" in asked.stdout:
            return
        time.sleep(0.5)
    raise RuntimeError(f"Slurm's node is not idle: {asked.stdout}{asked.stderr}")


def _end(pid: Path) -> None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        number = int(pid.read_text())
        os.kill(number, signal.SIGTERM)
        for _ in range(100):
            os.kill(number, 0)
            time.sleep(0.1)
        os.kill(number, signal.SIGKILL)


def _in_sbin(name: str) -> Path:
    return Path(shutil.which(name) or f"/usr/sbin/{name}")
