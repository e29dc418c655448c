"""Signals inside this process; whole commands are in tests/faults/test_ctrl_c.py."""

import gc
import os
import signal
import threading
import time

import pytest
from tqdm import tqdm

from eagc_ops.app import interrupts
from eagc_ops.app.console import command


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_a_step_is_finished_first():
    done = []

    def work():
        with interrupts.deferred() as interrupted:
            assert not interrupted()
            press()
            done.append("the step")
            assert interrupted()
            done.append("the checkpoint")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the step", "the checkpoint"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_one_does_not_wait():
    done = []

    def work():
        with interrupts.deferred():
            press()
            press()
            done.append("it waited")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


def pressed(error):
    with interrupts.deferred():
        press()
        raise error


def test_an_error_that_follows_is_a_consequence_but_a_full_disk_is_not():
    with pytest.raises(KeyboardInterrupt):
        pressed(RuntimeError("a worker was interrupted too"))
    with pytest.raises(OSError, match="full"):
        pressed(OSError("the disk is full"))
    with pytest.raises(RuntimeError, match="a bug"), interrupts.deferred():
        raise RuntimeError("a bug")


def test_one_that_gets_lost_comes_again(capfd):
    """An exception in a destructor is only printed; Ctrl-C must not end there."""

    class Noisy:
        def __del__(self):
            press()
            time.sleep(0.01)

    def work():
        noisy = Noisy()
        del noisy
        time.sleep(30)  # a signal that does not come must not keep the suite waiting

    with interrupts.handled(["eagc", "x"]), pytest.raises(KeyboardInterrupt):
        work()
    assert "ignored" not in capfd.readouterr().err


def test_an_object_that_it_left_half_made_says_nothing(capfd):
    class Bar:
        def __init__(self):
            press()
            self.place = 1

        def __del__(self):
            self.place += 1

    with interrupts.handled(["eagc", "x"]):
        with pytest.raises(KeyboardInterrupt):
            Bar()
        gc.collect()
    assert capfd.readouterr().err == ""


def test_pressed_again_the_line_is_whole(capfd, monkeypatch):
    def no_exit(code):
        raise AssertionError("it ended before the line was printed")

    monkeypatch.setattr(os, "_exit", no_exit)
    with interrupts.handled(["eagc", "x"]):
        interrupts.go_on_with(lambda: press() or "eagc x")
        assert interrupts.leave("eagc x") == 130
        with pytest.raises(AssertionError):  # from then on, at once
            press()
    assert capfd.readouterr().err == "eagc x: interrupted; to go on: eagc x\n"


def test_a_bar_that_is_being_drawn_is_not_part_of_the_line(capfd):
    class Pressed(tqdm):
        def display(self, *args, **options):
            super().display(*args, **options)
            press()

    # tqdm does not release what it holds here: bars of other threads of this process would wait for ever.
    Pressed.set_lock(threading.RLock())

    @command("eagc x")
    def main(words):
        list(Pressed(range(3)))

    with interrupts.handled(["eagc", "x"]):
        assert main([]) == 130
    bar, line = capfd.readouterr().err.strip().split("\n")
    assert "0/3" in bar
    assert line == "eagc x: interrupted; to go on: eagc x"


def test_children_do_not_hear_it(tmp_path):
    with interrupts.unaware_children():
        child = os.fork()
        if child == 0:
            time.sleep(0.2)
            os._exit(7)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@command("eagc x")
def work(words):
    """A step that a signal meets, and its checkpoint."""
    with interrupts.deferred() as interrupted:
        press(getattr(signal, words[0]))
        assert interrupted()
        done.append("saved")


done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done():
    done.clear()


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR2", 140)])
def test_a_signal_saves_says_the_line_and_has_its_code(capsys, name, code):
    by = "" if name == "SIGINT" else f" by {name}"
    with interrupts.handled(["eagc", "x"]):
        assert work([name]) == code
    assert done == ["saved"]
    assert capsys.readouterr().err == f"eagc x: interrupted{by}; to go on: eagc x\n"


def test_outside_of_a_step_sigterm_ends_the_work_at_once():
    @command("eagc x")
    def main(words):
        press(signal.SIGTERM)
        time.sleep(30)

    with interrupts.handled(["eagc", "x"]):
        assert main([]) == 143


def test_in_submitit_the_work_is_saved_then_its_handler_is_called(capsys):
    """submitit requeues the job in its handler of SIGUSR2, and then exits."""

    def requeue(number, frame):
        done.append(f"requeued at {signal.Signals(number).name}")
        raise SystemExit(1)

    signal.signal(signal.SIGUSR2, requeue)
    with pytest.raises(SystemExit), interrupts.handled(["eagc", "x"]):
        work(["SIGUSR2"])
    assert done == ["saved", "requeued at SIGUSR2"]
    assert capsys.readouterr().err.startswith("eagc x: interrupted by SIGUSR2; to go on: ")


def test_in_submitit_a_caller_in_python_is_saved_too():
    """`runs.train` without the command line."""
    signal.signal(signal.SIGUSR2, lambda number, frame: done.append("requeued"))

    def step():
        with interrupts.deferred() as interrupted:
            press(signal.SIGUSR2)
            assert interrupted()
            done.append("saved")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["saved", "requeued"]


def test_a_handler_of_sigterm_that_was_there_stays():
    """submitit's ignores it: Slurm sends SIGTERM before the signal that submitit waits for."""
    signal.signal(signal.SIGTERM, lambda number, frame: done.append("bypassed"))
    with interrupts.handled(["eagc", "x"]), interrupts.deferred() as interrupted:
        press(signal.SIGTERM)
        assert not interrupted()
    assert done == ["bypassed"]


def test_the_processes_of_a_run_stop_together():
    """Another process has been told to end: this one ends in the same step."""

    def step():
        with interrupts.deferred(lambda number: max(number, signal.SIGTERM)) as interrupted:
            assert interrupted()
            done.append("saved")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["saved"]


def test_children_do_not_hear_what_slurm_sends_to_all():
    with interrupts.unaware_children():
        child = os.fork()
        if child == 0:
            time.sleep(0.2)
            os._exit(7)
    os.kill(child, signal.SIGUSR2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_the_line(capsys, monkeypatch):
    with interrupts.handled(["eagc", "train", "-o", "my runs"]):
        assert interrupts.leave("eagc train") == 130
        interrupts.go_on_with(lambda: "eagc train --resume RUN")
        monkeypatch.setenv("WORLD_SIZE", "2")
        interrupts.leave("eagc train")
        monkeypatch.setenv("RANK", "1")
        interrupts.leave("eagc train")
    assert capsys.readouterr().err.splitlines() == [
        "eagc train: interrupted; to go on: eagc train -o 'my runs'",
        "eagc train: interrupted; to go on: eagc train --resume RUN, with the launcher of before",
    ]
