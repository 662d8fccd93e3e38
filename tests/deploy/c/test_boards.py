"""The C file on Arm Cortex-M, in QEMU: outputs have the bits of the host's. Runs on machines with both tools."""

import shutil
import subprocess

import pytest
import timm
import torch

from pdecnn.deploy.c.boards import BOARDS, GCC, installed, run_on
from pdecnn.deploy.c.build import runner
from pdecnn.deploy.c.write import write


@pytest.mark.parametrize("cpu", sorted(BOARDS) if installed() else [])
def test_outputs_have_the_bits_of_the_host(cpu):
    model = timm.create_model("mnist_toy_global").eval()
    x = torch.randn(1, 1, 28, 28)
    written = write(model, (x,), "net")
    found = run_on(cpu, written, x)
    assert torch.equal(found.out, runner(written.source)([x])[0][0])
    assert 1e5 < found.instructions < 5e7
    assert found.code < 20_000
    assert found.constants == pytest.approx(written.footprint.flash, rel=0.3)


@pytest.mark.parametrize("cpu", ["cortex-m0plus", "cortex-m33"] if shutil.which(GCC) else [])
def test_compiles_for_smaller_and_newer_cores(cpu, tmp_path):
    net = timm.create_model("cifar_resnet_tiny_global").eval()
    (tmp_path / "net.c").write_text(write(net, (torch.randn(1, 3, 32, 32),), "net").source)
    strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
    subprocess.run([GCC, *strict, f"-mcpu={cpu}", "-mthumb", "-Os", "-c", "net.c"], cwd=tmp_path, check=True)
