"""Any input at all: gcc and clang with sanitizers find nothing, and both give the same bits, in float and in 8 bits."""

import shutil
import subprocess

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from pdecnn.deploy.c.write import write
from pdecnn.layers import GlobalLayer

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
SANITIZED = ("-std=c99", "-O1", "-g", "-ffp-contract=off", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
int main(int argc, char **argv) {
    uint32_t state = 1, hash = 2166136261u;
    const int runs = argc > 1 ? atoi(argv[1]) : 1;
    for (int r = 0; r < runs; r++) {
        float *arena = malloc(NET_ARENA_BYTES), *in = malloc(NET_INPUTS * sizeof *in);
        float *out = malloc(NET_OUTPUTS * sizeof *out);
        for (int i = 0; i < NET_INPUTS; i++) {
            state = state * 1664525u + 1013904223u;
            union { uint32_t u; float f; } v = {state};          /* any bits: subnormal, infinite, not a number */
            in[i] = r % 2 ? v.f : (float)(state >> 8) / 4194304.0f - 2.0f;
        }
        if (net_run(arena, in, out) || net_run_k(arena, in, out, 1 + r % 3)) return 1;
        for (int i = 0; i < NET_OUTPUTS; i++) {
            union { float f; uint32_t u; } v = {out[i]};
            hash = (hash ^ (out[i] != out[i] ? 1u : v.u)) * 16777619u;  /* what is no number has many bits */
        }
        free(arena), free(in), free(out);
    }
    printf("%u", hash);
    return 0;
}
"""


class Small(nn.Module):
    """A bit of everything, on maps of 12 x 10."""

    def __init__(self):
        super().__init__()
        self.stem, self.body = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=2)
        self.flow, self.down = GlobalLayer(6, K=3), nn.Conv2d(6, 9, 3, stride=2, padding=1, dilation=1)
        self.squeeze, self.excite, self.head = nn.Conv2d(9, 2, 1), nn.Conv2d(2, 9, 1), nn.Linear(18, 5)

    def forward(self, x):
        y = F.relu(self.stem(x))
        y = self.flow(F.relu(self.body(y) + y))
        y = F.hardswish(self.down(y))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = torch.cat([F.max_pool2d(y, 3, 2, 1), F.avg_pool2d(y, 3, 2, 1, count_include_pad=False)], 1)
        return self.head(y.mean((2, 3)))


@pytest.fixture(scope="module")
def texts():
    torch.manual_seed(0)
    model, x = Small().eval(), torch.randn(8, 2, 12, 10)
    made = {"float": write(model, (x,), "net"), "int8": write(model, (x,), "net", int8=[(x,)])}
    assert not made["int8"].quantised.reasons
    return made


def run(texts, kind, folder, count):
    for name, text in (("net.c", texts[kind].source), ("net.h", texts[kind].header), ("main.c", MAIN)):
        (folder / name).write_text(text)
    found = []
    for compiler in COMPILERS:
        subprocess.run([compiler, *SANITIZED, "main.c", "net.c", "-o", "main"], cwd=folder, check=True)
        done = subprocess.run(["./main", str(count)], cwd=folder, check=True, capture_output=True, text=True)
        found.append(done.stdout)
    return found


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_sanitizers_find_nothing(texts, kind, tmp_path):
    assert len(set(run(texts, kind, tmp_path, 200))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_sanitizers_find_nothing_on_ten_thousand_inputs(texts, kind, tmp_path):
    assert len(set(run(texts, kind, tmp_path, 10_000))) == 1
