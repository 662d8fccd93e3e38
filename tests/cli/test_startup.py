"""Help, completion and the version do not wait for torch."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer.main

from pdecnn.cli import app

COMMANDS = sorted(typer.main.get_command(app).commands)
SCRIPT = """
import sys
from pdecnn.cli import main
sys.argv = ["pdecnn", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert end.code in (0, None), end.code
loaded = sorted({"torch", "timm", "numpy", "yaml", "matplotlib"} & set(sys.modules))
print("loaded", loaded)
"""


def run(*arguments, **environment):
    command = [sys.executable, "-c", SCRIPT, *arguments]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    said, _, loaded = result.stdout.rpartition("loaded ")
    assert loaded.strip() == "[]"
    return said


def test_there_are_commands():
    assert {"condense", "info", "train"} <= set(COMMANDS)


def test_help_lists_every_command():
    said = run("--help")
    assert all(name in said for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command(name):
    assert "Usage: pdecnn " + name in run(name, "--help")


def test_version():
    assert run("--version") == f"pdecnn {version('pdecnn')}\n"


def test_completion_of_commands_and_options():
    command = {"_PDECNN_COMPLETE": "complete_bash", "COMP_WORDS": "pdecnn con", "COMP_CWORD": "1"}
    assert run(**command).split() == ["condense"]
    option = {"_PDECNN_COMPLETE": "complete_bash", "COMP_WORDS": "pdecnn condense --tr", "COMP_CWORD": "2"}
    assert run(**option).split() == ["--train-teacher"]
