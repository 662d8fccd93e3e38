"""The page "your own data" as a reader follows it, in a folder with a network and photographs."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from own_network import network
from PIL import Image
from typer.testing import CliRunner

from pdecnn.cli import app

pytest.importorskip("onnxruntime")

PAGE = (Path(__file__).parents[2] / "docs/your-own-data.md").read_text(encoding="utf-8")
NETS = network(1000)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder with mynets.py, best.pth and photos."""
    (tmp_path / "mynets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    torch.manual_seed(0)
    scope: dict = {}
    exec(NETS, scope)
    torch.save(scope["make"](2).state_dict(), "best.pth")
    for split, count in (("train", 8), ("val", 3)):
        for label in ("cat", "dog"):
            home = tmp_path / "photos" / split / label
            home.mkdir(parents=True)
            for i in range(count):
                pixels = torch.randint(0, 256, (30, 28, 3), dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(home / f"{i}.jpg")


def test_every_command_and_every_block_runs(reader):
    commands = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.S) for line in block.splitlines()]
    assert len(commands) == 3
    for line in commands:
        program, *arguments = shlex.split(line)
        assert program == "pdecnn"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}"
    assert {"report.html", "student", "teacher", "student.onnx", "plan.json", "result.json"} <= {
        p.name for p in Path("runs/mine").iterdir()
    }
    assert Path("mine.onnx").is_file()
    scope = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "your-own-data.md", "exec"), scope)
    assert scope["report"].accuracies
