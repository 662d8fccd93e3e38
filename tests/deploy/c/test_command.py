"""C from the shell: `pdecnn export --format c` and the runtime `c`."""

import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.deploy.bench import bench, make_runner


def test_export_prints_what_the_file_costs(tmp_path):
    file = tmp_path / "digits.c"
    call = ["export", "mnist_toy_global", "--format", "c", "--output", str(file), "--samples", "4", "--batch", "1"]
    result = CliRunner().invoke(app, call)
    assert result.exit_code == 0, result.output
    assert "digits.h" in result.output
    assert "SRAM" in result.output
    assert "int digits_run(void *arena" in (tmp_path / "digits.h").read_text()
    result = CliRunner().invoke(app, [*call, "--json"])
    report = json.loads(result.output)
    assert report["footprint"]["sram"] > 0
    assert {row["runtime"] for row in report["latency"]} == {"eager", "optimized", "c"}


def test_c_is_a_runtime_of_bench():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    x = torch.randn(2, 1, 8, 8)
    run, size = make_runner("c", model, x, 1)
    with torch.no_grad():
        torch.testing.assert_close(run(x)[0], model(x), rtol=1e-5, atol=1e-6)
    assert size == pytest.approx(4 * sum(p.numel() for p in model.parameters()), rel=0.1)
    rows = bench({"net": (model, x)}, runtimes=("eager", "c"), batches=(1,), rounds=3, progress=False)
    assert [row.runtime for row in rows] == ["eager", "c"]
