"""The whole job for a net that serves every K: the student keeps its statistics in all that is written."""

import pytest
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.deploy.api import session
from pdecnn.layers import set_steps
from pdecnn.layers.step_norm import StepNorm
from pdecnn.layers.steps import served_steps

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(24, 3, 10, 10, generator=G), torch.randint(0, 3, (24,), generator=G)


@pytest.mark.parametrize("replacement, K", [("paper", 5), ("pde", 3)])
def test_a_job_leaves_a_knob(tmp_path, replacement, K):
    torch.manual_seed(0)
    blocks = [Residual(8, 8, 1, False, True) for _ in range(4)]
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )
    train = list(zip(X.split(8), Y.split(8), strict=True))
    small, report = pdecnn.condense(
        net, X[:1], train=train, val=train, epochs=1, output=tmp_path, fit={"steps": 1}, quiet=True, null=True,
        replacement=replacement, distill={"steps": (1, 6)},
    )  # fmt: skip
    assert served_steps(small) == (1, 6)
    (norm,) = (m for m in small.modules() if isinstance(m, StepNorm))
    assert norm.K == K
    assert not torch.equal(norm.running_var[0], norm.running_var[5])
    assert "distilled" in report.accuracies
    loaded = pdecnn.load(tmp_path, factory=lambda: net)
    found = session(tmp_path / "student.onnx").run(None, {"input": X.numpy()})[0]
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(found), small.eval()(X), rtol=1e-3, atol=1e-4)
        for steps in (1, 4, 6):
            set_steps(small, steps)
            set_steps(loaded, steps)
            assert torch.equal(loaded(X), small(X))
