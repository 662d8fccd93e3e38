"""A condensed model is tried before it is promised: large feature maps must not become NaN."""

import pytest
import timm
import torch
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.condensation import Plan, register_block
from pdecnn.condensation.apply import new_layers
from pdecnn.condensation.blocks import _REPLACEMENTS
from pdecnn.condensation.fit import fit_layer
from pdecnn.condensation.trial import lively

X = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def loud(gain: float, stages: int = 3) -> nn.Module:
    """A net whose maps are `gain` times larger than usual, as those of a deep net that was never trained can be."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Conv2d(16, 16, 1), *(Residual(16, 16, 1, False, True) for _ in range(4)))
        for _ in range(stages)
    ]
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), *blocks, nn.Flatten(), nn.Linear(16 * 256, 5))
    with torch.no_grad():
        net[0].weight.mul_(gain)
    return net.eval()


@pytest.mark.parametrize("example", [X, torch.zeros_like(X)])
@pytest.mark.parametrize("gain", [1e2, 1e4])
def test_large_maps_stay_finite_and_near_stability(gain, example):
    model = loud(gain)
    plan = pdecnn.plan(model, example, replacement="paper")
    assert len(plan.runs) == 3
    assert all(run.rms > 0.05 * gain for run in plan.runs)
    small = plan.apply(model).eval()
    met = {}
    for site, layer in new_layers(small, plan.runs).items():
        layer.register_forward_hook(lambda m, args, out, site=site: met.update({site: m.stability(args[0]).cfl}))
    with torch.no_grad():
        before, after = model(X), small(X)
    assert after.isfinite().all()
    assert after.abs().max() < 100 * before.abs().max()
    assert len(met) == 3
    assert max(met.values()) < 2


def test_without_the_sizes_the_same_layers_blow_up():
    model = loud(1e4)
    plan = pdecnn.plan(model, X, replacement="paper")
    for run in plan.runs:
        plan = plan.edit(run.path, rms=1.0)
    with torch.no_grad():
        assert not plan.apply(model).eval()(X).isfinite().all()


def test_maps_of_common_size_start_as_always():
    model = loud(1.0)
    small = pdecnn.plan(model, X, replacement="paper").apply(model)
    norms = [m for layer in small.modules() if hasattr(layer, "velocity") for m in layer.velocity.modules()]
    variances = [m.running_var for m in norms if isinstance(m, nn.BatchNorm2d)]
    assert len(variances) == 6
    assert all((q == 1).all() for q in variances)


def test_fitting_ends_in_the_same_place_from_any_size():
    teacher = timm.create_model("fashion_resnet32.fashion_mini", pretrained=True).eval()
    plan = pdecnn.plan(teacher, torch.zeros(1, 1, 28, 28), replacement="paper")
    run = plan.runs[0]
    g = torch.Generator().manual_seed(1)
    x, y = (torch.rand(16, *run.shape, generator=g) for _ in range(2))
    states = []
    for rms in (run.rms, 100.0):
        torch.manual_seed(0)
        layer = new_layers(plan.edit(run.path, rms=rms).apply(teacher), plan.runs)[run.site]
        assert fit_layer(layer, x, y, steps=3, lr=1e-2, batch_size=8, seed=0).after < 1.0
        states.append(layer.state_dict())
    assert all(torch.equal(q, states[1][name]) for name, q in states[0].items())


def test_sizes_survive_the_file(tmp_path):
    plan = pdecnn.plan(loud(1e3), X, replacement="paper")
    assert [run.rms for run in Plan.load(plan.save(tmp_path / "plan.json")).runs] == [run.rms for run in plan.runs]


def test_a_replacement_that_is_not_finite_is_refused_with_the_reason():
    class Mine(Residual):
        pass

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 0

    register_block(Mine)(lambda blocks, run: Broken())
    try:
        model = nn.Sequential(nn.Conv2d(3, 16, 3), *(Mine(16, 16, 1, False, True) for _ in range(4))).eval()
        with pytest.raises(ValueError, match="without these blocks: what it returns is not finite"):
            pdecnn.plan(model, X, replacement="paper")
    finally:
        del _REPLACEMENTS[Mine]


def test_only_constant_inputs_become_noise():
    assert lively(X) is X
    words = torch.zeros(3, dtype=torch.long)
    assert lively(words) is words
    assert lively("text") == "text"
    state = torch.get_rng_state()
    noise = lively(torch.zeros(4, 4, dtype=torch.float64))
    assert noise.dtype == torch.float64
    assert noise.std() > 0.5
    assert torch.equal(state, torch.get_rng_state())
