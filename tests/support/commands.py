"""Calling the commands of `eagc` in this process."""

from eagc_ops.app.cli import main


def call(capsys, *arguments):
    """(exit code, stdout, stderr) of a command."""
    try:
        code = main(list(arguments))
    except SystemExit as exit:
        code = exit.code
    return code, *capsys.readouterr()
