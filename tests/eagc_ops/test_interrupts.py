"""Ctrl-C inside this process, by real signals; whole commands are in tests/faults/test_ctrl_c.py."""

import os
import signal
import time

import pytest

from eagc_ops import interrupts


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


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
