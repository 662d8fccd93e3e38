"""A knob as C: every K that it serves gives what the model gives with that K, and no other K is taken."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from pdecnn.deploy.c.build import Built, described
from pdecnn.deploy.c.write import write
from pdecnn.layers import GlobalLayer, serve_steps, with_steps
from pdecnn.layers.step_norm import StepNorm
from pdecnn.layers.transport import Transport

LEAST, MOST = 2, 5


def knob(*parts):
    """A net that serves a range of K, with statistics and weights as if it were trained."""
    torch.manual_seed(0)
    net = serve_steps(nn.Sequential(*parts), LEAST, MOST).eval()
    for norm in (m for m in net.modules() if isinstance(m, StepNorm)):
        for value in (*norm.parameters(), *norm.buffers()):
            if value.is_floating_point():
                nn.init.uniform_(value, 0.5, 2.0)
    return net


def answer(written, x, K=None):
    """The code that the file returns, and its answer to one image."""
    name, arena, ((*shape,),) = described(written.source)
    out = np.full(shape, np.nan, dtype=np.float32)
    code = Built(written.source, name).run(np.zeros(arena // 4, np.float32), x.numpy(), out, K)
    return code, torch.from_numpy(out)


@pytest.mark.parametrize("own", [LEAST, 4])
def test_every_served_k_has_its_own_statistics(own):
    net, x = knob(nn.Conv2d(3, 8, 3), GlobalLayer(8), nn.ReLU(), GlobalLayer(8, residual=True)), torch.randn(1, 3, 9, 7)
    with with_steps(net, own), torch.no_grad():
        written = write(net, (x,), "net")
        torch.testing.assert_close(answer(written, x)[1], net(x))
    answers = []
    for K in range(LEAST, MOST + 1):
        code, got = answer(written, x, K)
        with with_steps(net, K), torch.no_grad():
            torch.testing.assert_close(got, net(x))
        assert code == 0
        answers.append(got)
    assert all((a - b).abs().max() > 0.01 for a, b in pairwise(answers))
    for K in (0, LEAST - 1, MOST + 1):
        code, got = answer(written, x, K)
        assert code == -1
        assert got.isnan().all()
    assert f"from {LEAST} to {MOST}" in written.header


MORE = {  # other operators, or other weights alone
    "a stencil": lambda: (Transport(3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 1), GlobalLayer(4)),
    "a norm": lambda: (nn.Conv2d(3, 4, 1), StepNorm(nn.BatchNorm2d(4), LEAST, MOST), GlobalLayer(4)),
}


@pytest.mark.parametrize("what", MORE)
def test_a_knob_of_which_more_depends_on_k_has_the_k_that_is_set(what):
    net, x = knob(*MORE[what]()), torch.randn(1, 3, 6, 6)
    with with_steps(net, 3), torch.no_grad():
        written = write(net, (x,), "net")
        torch.testing.assert_close(answer(written, x)[1], net(x))
    assert "run_k" not in written.source + written.header


def test_a_knob_in_8_bits_has_the_k_that_is_set():
    net, x = knob(nn.Conv2d(3, 4, 1), GlobalLayer(4)), torch.randn(4, 3, 6, 6)
    with with_steps(net, 3), torch.no_grad():
        written = write(net, (x[:1],), "net", int8=[(x,)])
    assert "run_k" not in written.source + written.header
