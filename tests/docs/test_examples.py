"""Every example of docstrings, pages and README runs as a user pastes it."""

import doctest
import importlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer.main
from torch import nn

import pdecnn
from pdecnn.cli import app

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def files_with_examples():
    return [path for path in sorted(SOURCE.rglob("*.py")) if re.search(r"^\s*>>> ", path.read_text("utf-8"), re.M)]


def module_name(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def blocks(page, language):
    """What stands in the fences of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands(page):
    """The lines of a page that call `pdecnn`: indented by four, or in a fence of bash."""
    lines = re.findall(r"^ {4}(pdecnn .*)", page.read_text(encoding="utf-8"), re.M)
    return lines + re.findall(r"^(pdecnn .*)", "".join(blocks(page, "bash")), re.M)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", files_with_examples(), ids=module_name)
def test_docstrings(path):
    """They may use torch, nn, pdecnn and what their file defines; all else they import themselves."""
    module = importlib.import_module(module_name(path))
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    tests = [test for test in doctest.DocTestFinder().find(module) if test.examples]
    written = len(re.findall(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.M))
    assert sum(len(test.examples) for test in tests) == written, "some examples are where doctest does not look"
    said = []
    for test in tests:
        test.globs = {"__name__": "example", "torch": torch, "nn": nn, "pdecnn": pdecnn, **own}
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append)
    assert said == [], "".join(said)


WITH_FILES = ["your-own-data.md"]  # run by test_your_own_data.py, which makes the files that it speaks of


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python") and p.name not in WITH_FILES], ids=lambda p: p.name
)
def test_blocks_of_a_page_are_a_script(page, monkeypatch):
    script = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", script)  # timm looks up the module of what is registered
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), vars(script))


def test_pages_have_no_prompts():
    """What is pasted has none, and nothing here would run them."""
    assert [page.name for page in PAGES if re.search(r"^\s*>>> ", page.read_text(encoding="utf-8"), re.M)] == []


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.name)
def test_commands_of_a_page_are_understood(page):
    group = typer.main.get_command(app)
    for line in commands(page):
        _, name, *arguments = shlex.split(line, comments=True)
        assert name in group.commands, line
        try:
            group.commands[name].make_context(name, arguments)
        except Exception as error:
            pytest.fail(f"{line}: {error}")
