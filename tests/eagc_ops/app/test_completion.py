"""What a shell is offered at TAB, asked as its script asks."""

import os
import subprocess
import sys

import pytest

from eagc_ops.app import cli


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("eagc di", ["discover"], ["train"]),
        ("eagc train --epo", ["--epochs"], ["--seed"]),
        ("eagc train --method s", ["selex", "simgcd", "sptnet"], ["legogcd"]),
        ("eagc data v", ["verify"], ["show"]),
        ("eagc bench th", ["throughput"], ["loader"]),
        ("eagc bench throughput --dty", ["--dtypes"], ["--rows"]),
    ],
)
def test_words_are_completed(tmp_path, line, offered, not_offered):
    answer = tmp_path / "answer"
    done = subprocess.run(
        [sys.executable, "-m", "eagc_ops.app.cli"],
        env={
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "_ARGCOMPLETE_IFS": "\n",
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    words = {word.strip() for word in answer.read_text().splitlines()}
    assert words >= {*offered} and not words & {*not_offered}, words


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh", "fish", "powershell"])
def test_every_shell_has_its_script(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    assert "eagc" in capsys.readouterr().out
