"""The C file on Arm Cortex-M and RISC-V, in QEMU: outputs have the bits of the host's. Runs where the tools are."""

import shutil
import subprocess

import pytest
import timm
import torch
from torch import nn

from pdecnn.deploy.c.boards import BOARDS, GCC, run_on
from pdecnn.deploy.c.build import runner
from pdecnn.deploy.c.write import write
from pdecnn.layers import GlobalLayer

HERE = sorted(cpu for cpu, board in BOARDS.items() if board.installed())


@pytest.fixture(scope="module")
def written():
    model = timm.create_model("mnist_toy_global").eval()
    x = torch.randn(4, 1, 28, 28)
    return x[:1], {"float": write(model, (x,), "net"), "int8": write(model, (x,), "net", int8=[(x,)])}


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("cpu", HERE)
def test_outputs_have_the_bits_of_the_host(cpu, kind, written):
    x, texts = written
    found = run_on(cpu, texts[kind], x)
    assert torch.equal(found.out, runner(texts[kind].source)([x])[0][0])
    assert 1e5 < found.instructions < 5e7
    assert found.code < 20_000
    assert found.constants == pytest.approx(texts[kind].footprint.flash, rel=0.3, abs=600)


@pytest.mark.parametrize("cpu", [cpu for cpu in HERE if cpu in ("cortex-m4", "cortex-m7")])
def test_integers_take_fewer_instructions_than_floats(cpu):
    torch.manual_seed(0)
    layers = (nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), GlobalLayer(8), nn.Conv2d(8, 8, 3, padding=1))
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 4, 12, 12)
    small = write(model, (x,), "net", int8=[(x,)])
    assert not small.quantised.reasons
    assert run_on(cpu, small, x[:1]).instructions < 0.9 * run_on(cpu, write(model, (x,), "net"), x[:1]).instructions


@pytest.mark.parametrize("kind", ["float", "int8"])
@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m33"] if shutil.which(GCC) else [])
def test_compiles_for_smaller_and_newer_cores(cpu, kind, written, tmp_path):
    (tmp_path / "net.c").write_text(written[1][kind].source)
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
    subprocess.run([GCC, *strict, f"-mcpu={cpu}", "-mthumb", "-Os", "-c", "net.c"], cwd=tmp_path, check=True)
