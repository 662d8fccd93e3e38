"""Training in bfloat16: maps of half the size, parameters and optimiser in float32."""

import pytest
import torch
from torch import nn
from training_toys import recipe, tiny_data, tiny_net

from pdecnn.shared.modules import listen
from pdecnn.training import build_model, fit, load_dataset, load_recipe


def test_maps_are_bfloat16_and_parameters_float32(tmp_path):
    net, seen = tiny_net(), []
    before = [p.detach().clone() for p in net.parameters()]

    def after(module, args, kwargs, output):
        if module.training:
            seen.append(output.dtype)

    with listen([m for m in net.modules() if isinstance(m, nn.Conv2d)], after=after):
        result = fit(net, tiny_data(), recipe(precision="bf16", epochs=2, ema_decay=None), run_dir=tmp_path)
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    # a master copy: steps smaller than a bfloat16 number resolves are not lost
    assert any(not torch.equal(p.detach(), p.detach().bfloat16().float()) for p in net.parameters())
    assert all(not torch.equal(p.detach(), q) for p, q in zip(net.parameters(), before, strict=True))
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"] + 0.5


@pytest.mark.slow
def test_bfloat16_learns_as_much():
    accuracy = {}
    for precision in ("fp32", "bf16"):
        settings = load_recipe("quick/fashion-mini").override([f"precision={precision}", "epochs=4"])
        torch.manual_seed(0)
        net = build_model(settings.model.model_dump())
        accuracy[precision] = fit(net, load_dataset("fashion-mini"), settings).accuracy
        assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert accuracy["bf16"] > 60
    assert abs(accuracy["bf16"] - accuracy["fp32"]) < 4  # points; one seed differs from another by as much
