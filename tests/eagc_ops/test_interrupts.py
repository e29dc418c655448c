"""Ctrl-C inside this process, by real signals; whole commands are in tests/faults/test_ctrl_c.py."""

import gc
import os
import signal
import time

import pytest
from tqdm import tqdm

from eagc_ops import interrupts
from eagc_ops.console import command


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
