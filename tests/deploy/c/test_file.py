"""The C file as a whole: it agrees with the model, is clean C99, and gives the same bits whoever compiles it."""

import ctypes
import re
import shutil
import subprocess
import threading

import numpy as np
import pytest
import timm
import torch
from c_cases import agrees, as_trained
from torch import nn

import pdecnn
from pdecnn.deploy.c.build import Built, described, runner
from pdecnn.deploy.c.write import write
from pdecnn.deploy.check import CannotExportError, ExportError
from pdecnn.layers import GlobalLayer

QUICK = ["cifar_resnet_tiny_global", "mnist_toy_global", "lowcost_explicit_tiny", "cifar_hyperbolic_eq3"]
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-Wconversion")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]


def make(name):
    model = as_trained(timm.create_model(name))
    C, side, _ = model.default_cfg["input_size"]
    side = {28: 28, 32: 16}.get(side, 32)
    return model, torch.randn(8, C, side, side)


@pytest.mark.parametrize("name", QUICK)
def test_file_agrees_with_the_model(name):
    agrees(*make(name))


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    model, _ = make("cifar_resnet_tiny_global")
    x = torch.randn(4, 3, 32, 32)
    return model, x, write(model, (x,), "net")


def test_export_writes_file_and_header_and_says_what_they_cost(tiny, tmp_path):
    model, x, _ = tiny
    classes = [f"class {i}" for i in range(9)] + ['a "name"']
    report = pdecnn.export(model, tmp_path / "my-net.c", x, format="c", metadata={"classes": classes}, progress=False)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my-net.c", "my-net.h"]
    assert report.agreement.max_error < 1e-5
    assert report.agreement.samples == 4
    assert report.beside == (str(tmp_path / "my-net.h"),)
    cost = report.footprint
    assert cost.least_sram <= cost.sram <= 1.05 * cost.least_sram
    assert 4 * sum(p.numel() for p in model.parameters()) * 0.9 < cost.flash < report.bytes
    assert cost.macs == sum(layer.macs for layer in cost.layers) > 1e6
    (tmp_path / "main.c").write_text(
        """#include "my-net.h"
        static const char *const classes[] = MY_NET_CLASSES;
        int main(void) {
            static float arena[MY_NET_ARENA_BYTES / sizeof(float)], in[MY_NET_INPUTS], out[MY_NET_OUTPUTS];
            return my_net_run(arena, in, out) || my_net_run_k(arena, in, out, 3)
                || my_net_run_k(arena, in, out, 0) != -1
                || my_net_run_k(arena, in, out, 10001) != -1 || classes[9][2] != '"';
        }"""
    )
    call = ["cc", *STRICT, "main.c", "my-net.c", "-o", "main"]
    subprocess.run(call, cwd=tmp_path, check=True)
    subprocess.run(["./main"], cwd=tmp_path, check=True)


def test_nothing_but_memory_functions_is_called(tiny, tmp_path):
    (tmp_path / "net.c").write_text(tiny[2].source)
    subprocess.run(["cc", "-std=c99", "-O2", "-fno-pic", "-c", "net.c"], cwd=tmp_path, check=True)
    found = subprocess.run(["nm", "net.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r" U (\w+)", found)) <= {"memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}
    assert not re.findall(r" [bBdDC] \w+", found)  # no mutable data
    assert set(re.findall(r" T (\w+)", found)) == {"net_run", "net_run_k"}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("level", ["-O0", "-O3"])
def test_clean_and_the_same_bits_with_every_compiler(tiny, compiler, level):
    _, x, written = tiny
    expected = runner(written.source, flags=("-std=c99", "-O1"))([x])[0]
    for target in ((), ("-march=native",)):
        run = runner(written.source, command=[compiler], flags=(*STRICT, level, "-ffp-contract=off", *target))
        assert torch.equal(run([x])[0], expected)


def test_scalar_and_vector_targets_give_the_same_bits(tiny):
    _, x, written = tiny
    scalar = re.sub(r"#define LANES \d+", "#define LANES 1", written.source)
    assert torch.equal(runner(scalar)([x])[0], runner(written.source)([x])[0])


@pytest.mark.parametrize("K", [1, 2, 7])
def test_steps_are_chosen_when_it_runs(tiny, K):
    model, x, written = tiny
    name, arena_bytes, _ = described(written.source)
    built = Built(written.source, name)
    arena, out = np.empty(arena_bytes // 4, np.float32), np.empty(10, np.float32)
    own = [(m, m.K) for m in model.modules() if isinstance(m, GlobalLayer)]
    assert built.run(arena, x[0].numpy(), out, K) == 0
    try:
        for layer, _ in own:
            layer.set_steps(K)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(out)[None], model(x[:1]), rtol=1e-4, atol=1e-5)
    finally:
        for layer, before in own:
            layer.set_steps(before)
    assert built.run(arena, x[0].numpy(), out, 0) == -1


def test_two_threads_with_an_arena_each(tiny):
    _, x, written = tiny
    name, arena_bytes, _ = described(written.source)
    built = Built(written.source, name)
    expected = runner(written.source)([x])[0]
    wrong = []

    def work(i):
        arena, out = np.empty(arena_bytes // 4, np.float32), np.empty(10, np.float32)
        for _ in range(50):
            built.run(arena, x[i].numpy(), out)
            if not np.array_equal(out, expected[i].numpy()):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


class Unwritable(nn.Module):
    def forward(self, x):
        return torch.fft.rfft2(x).real.cumsum(1) + x.sort(2)[0][..., :1]


def test_what_cannot_be_written_is_refused_by_name_and_leaves_nothing(tmp_path):
    with pytest.raises(CannotExportError, match=r"aten\._fft_r2c.*aten\.cumsum.*aten\.sort") as caught:
        pdecnn.export(Unwritable(), tmp_path / "net.c", torch.rand(1, 2, 4, 4), format="c", progress=False)
    assert "format='onnx'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_is_refused_and_removed(tiny, tmp_path, monkeypatch):
    from pdecnn.deploy.c import convolution

    model, x, _ = tiny
    pack = convolution.pack
    monkeypatch.setattr(convolution, "pack", lambda *a: pack(*a) * 1.01)
    with pytest.raises(ExportError, match=r"First difference: conv1 \(Conv2d\)|First difference"):
        pdecnn.export(model, tmp_path / "net.c", x, format="c", progress=False)
    assert not list(tmp_path.iterdir())


def test_without_a_compiler_the_error_says_what_to_do(tiny, tmp_path, monkeypatch):
    model, x, _ = tiny
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"no-such-compiler is not installed.*check=False"):
        pdecnn.export(model, tmp_path / "net.c", x, format="c", progress=False)
    assert not list(tmp_path.iterdir())
    report = pdecnn.export(model, tmp_path / "net.c", x, format="c", check=False, progress=False)
    assert report.agreement is None
    assert (tmp_path / "net.c").exists()


def test_several_inputs_and_outputs_follow_one_another():
    class Two(nn.Module):
        def forward(self, x, z):
            return x + z.mean((2, 3), keepdim=True), z * 2, x

    x, z = torch.randn(3, 2, 4, 4), torch.randn(3, 2, 5, 3)
    model = Two()
    written = write(model, (x, z), "net")
    for got, expected in zip(runner(written.source)([x, z]), model(x, z), strict=True):
        torch.testing.assert_close(got, expected)


def test_options_of_other_formats_are_refused(tiny, tmp_path):
    model, x, _ = tiny
    with pytest.raises(ValueError, match=r"dynamic is for format='onnx', got format='c'"):
        pdecnn.export(model, tmp_path / "net.c", x, format="c", dynamic="size")
    with pytest.raises(ValueError, match=r"a c file is named \*\.c"):
        pdecnn.export(model, tmp_path / "net.onnx", x, format="c")


def test_the_run_functions_take_plain_pointers(tiny):
    library = Built(tiny[2].source, "net").library
    assert isinstance(library["net_run"], ctypes._CFuncPtr)
