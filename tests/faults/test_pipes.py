"""A reader that goes before everything is written, as `head -1` does: the command ends quietly."""

import os
import subprocess
import sys

import pytest
from faults import trials

pytestmark = pytest.mark.fault("broken pipes")

LINES = ("--help", "train --help", "env", "data download cub", "bench --help")


@pytest.mark.parametrize("line", trials(LINES, short=2))
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_whose_reader_has_gone_ends_quietly(line, unbuffered):
    process = subprocess.Popen(
        [sys.executable, "-m", "eagc_ops.app.cli", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert (process.wait(), errors) == (141, "")
