"""Optional imports: what is said when they are missing or broken."""

import re
import sys
from pathlib import Path

import pytest

from pdecnn.shared import extras
from pdecnn.shared.extras import require

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_a_module_that_is_there():
    assert require("json.decoder", "viz") is sys.modules["json.decoder"]


@pytest.mark.parametrize(
    "extra, message",
    [
        ("export", r'^deploy: needs nowhere\.part, which is not installed\. Run: pip install "pdecnn\[export\]"$'),
        ("train", r'^training: needs nowhere\.part, which is not installed\. Run: pip install "pdecnn\[train\]"$'),
        ("executorch", r"^deploy: needs nowhere\.part, which is not installed\. Run: pip install executorch$"),
    ],
)
def test_a_missing_module_is_named_with_its_room_and_the_cure(extra, message):
    with pytest.raises(ModuleNotFoundError, match=message) as caught:
        require("nowhere.part", extra)
    assert caught.value.name == "nowhere.part"


@pytest.mark.parametrize(
    "line, cause",
    [
        ("import nowhere", "No module named 'nowhere'"),
        ("raise ImportError('libcuda.so: cannot open')", "libcuda.so: cannot open"),
    ],
)
def test_a_module_that_is_there_but_broken_is_not_called_missing(tmp_path, monkeypatch, line, cause):
    (tmp_path / "broken_extra.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=rf"needs broken_extra, which cannot be imported \({cause}\)\. Run: pip"):
        require("broken_extra", "viz")


def test_every_extra_can_be_installed():
    section = PYPROJECT.read_text().split("[project.optional-dependencies]")[1].split("\n[")[0]
    assert set(extras._ROOMS) - set(extras._NOT_OURS) <= set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
