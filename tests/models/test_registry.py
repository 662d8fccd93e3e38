"""One suite over every model that pdecnn registers in timm: what timm's own tests ask for, and what ours do."""

import copy
from functools import cache

import pytest
import timm
import torch
from timm.models import model_entrypoint
from timm.models._manipulate import group_with_matcher

import pdecnn  # noqa: F401  (registers the models)

NAMES = [name for name in timm.list_models() if model_entrypoint(name).__module__.startswith("pdecnn.")]
TINY = [name for name in NAMES if "tiny" in name or "toy" in name or name.startswith("test_")]
GLOBAL = [name for name in NAMES if "global" in name]

# Parameters that the published net has and does not use.
UNUSED = {"mnist_toy_conv": ("stages.1.0.norm.weight", "stages.1.0.norm.bias")}

# Fewer than three feature levels: one equilibrium holds all scales; one ODE is all the net.
LEVELS = {
    "cifar_mdeq": 2,
    "cifar_mdeq_small": 2,
    "cifar_mdeq_tiny": 2,
    "mnist_micro_global": 2,
    "mnist_neupde": 1,
    "mnist_odenet": 1,
}

# The number of iterations of these depends on the data, so that no one graph holds them.
EAGER_ONLY = ("cifar_mdeq", "cifar_mdeq_small", "cifar_mdeq_tiny", "mnist_odenet")


@cache
def fresh(name):
    """A model in eval mode; tests that change it take a copy."""
    torch.manual_seed(0)
    return timm.create_model(name).eval()


def images(name, batch=2, seed=0):
    """A small batch: the model's own channels, the least size that all its stages can halve."""
    C, side, _ = fresh(name).default_cfg["input_size"]
    side = {28: 28, 32: 16}.get(side, 32)
    return torch.randn(batch, C, side, side, generator=torch.Generator().manual_seed(seed))


def test_the_registry_is_not_empty():
    assert len(NAMES) >= 35
    assert len(TINY) >= 9
    assert len(GLOBAL) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_learns(name):
    """timm's backward test: every parameter gets a gradient, with another head and other channels."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, in_chans=2).train()
    x = images(name)[:, :1].repeat(1, 2, 1, 1)
    out = model(x)
    assert out.shape == (2, 7)
    assert torch.isfinite(out).all()
    (out * torch.randn(2, 7)).sum().backward()
    missing = [n for n, p in model.named_parameters() if p.grad is None]
    assert missing == list(UNUSED.get(name, ()))
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", NAMES)
def test_default_cfg_head_and_features(name):
    """timm's default_cfg test: names in the config, the head taken off and put back, unpooled features."""
    model, cfg = copy.deepcopy(fresh(name)), fresh(name).default_cfg
    state, x = model.state_dict(), images(name)
    assert f"{cfg['classifier']}.weight" in state
    assert f"{cfg['first_conv']}.weight" in state
    assert model.get_classifier().weight is state_parameter(model, f"{cfg['classifier']}.weight")
    with torch.no_grad():
        features = model.forward_features(x)
        assert features.ndim == 4
        torch.testing.assert_close(model.forward_head(features), model(x))
        pre_logits = model.forward_head(features, pre_logits=True)
        model.reset_classifier(0)
        out = model(x)
        torch.testing.assert_close(out, pre_logits)
        assert out.shape == (2, model.head_hidden_size)
        model.reset_classifier(0, "")
        assert model(x).ndim == 4
        model.reset_classifier(5, "avg")
        assert model(x).shape == (2, 5)
        assert model.num_classes == 5


def state_parameter(model, name):
    return dict(model.named_parameters())[name]


@pytest.mark.parametrize("name", NAMES)
def test_features_only(name):
    """timm's feature test: at least three levels, as described, and the same maps as forward_intermediates."""
    model, x = fresh(name), images(name)
    torch.manual_seed(0)
    extractor = timm.create_model(name, features_only=True).eval()
    extractor.load_state_dict({f"model.{k}": v for k, v in model.state_dict().items()}, strict=False)
    with torch.no_grad():
        maps = extractor(x)
        last, intermediates = model.forward_intermediates(x)
        torch.testing.assert_close(last, model.forward_features(x))
    info = extractor.feature_info
    assert len(maps) == len(info.channels()) >= LEVELS.get(name, 3)
    for q, C, reduction, other in zip(maps, info.channels(), info.reduction(), intermediates, strict=True):
        assert q.shape[1] == C
        assert abs(q.shape[-1] - x.shape[-1] / reduction) <= 2  # a stem without padding loses two pixels
        torch.testing.assert_close(q, other)
    first = timm.create_model(name, features_only=True, out_indices=(0,)).eval()
    assert [q.shape for q in first(x)] == [maps[0].shape]


@pytest.mark.parametrize("name", NAMES)
def test_memory_format_and_low_precision(name):
    model, x = fresh(name), images(name)
    with torch.no_grad():
        out = model(x)
        last = copy.deepcopy(model).to(memory_format=torch.channels_last)
        torch.testing.assert_close(last(x.to(memory_format=torch.channels_last)), out, rtol=1e-4, atol=1e-4)
        with torch.autocast("cpu", torch.bfloat16):
            low = model(x).float()
    assert torch.isfinite(low).all()
    assert (low - out).abs().max() <= 0.1 * out.abs().max() + 0.02


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_weights_and_state_dict_round_trip(name):
    model = fresh(name)
    torch.manual_seed(0)
    twin = timm.create_model(name)
    for (n, p), (m, q) in zip(model.state_dict().items(), twin.state_dict().items(), strict=True):
        assert n == m
        assert torch.equal(p, q), n
    other = timm.create_model(name).eval()  # another state of the generator
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        x = images(name)
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_parameters_cover_all(name):
    model = fresh(name)
    for coarse in (False, True):
        groups = group_with_matcher(model.named_parameters(), model.group_matcher(coarse))
        assert sorted(n for names in groups.values() for n in names) == sorted(n for n, _ in model.named_parameters())
        assert len(groups) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_device_and_dtype(name):
    assert {p.device.type for p in timm.create_model(name, device="meta").parameters()} == {"meta"}
    assert {p.dtype for p in timm.create_model(name, dtype=torch.float64, device="meta").parameters()} == {
        torch.float64
    }


@pytest.mark.parametrize("name", TINY)
def test_checkpointing_changes_no_gradient(name):
    x = images(name)
    gradients = []
    for enable in (False, True):
        model = copy.deepcopy(fresh(name))
        model.set_grad_checkpointing(enable)
        model(x).square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", [name for name in TINY if name in GLOBAL])
def test_act_norm_and_drop_options(name):
    kwargs = {"act_layer": "silu", "drop_rate": 0.3, "drop_path_rate": 0.2}
    torch.manual_seed(0)
    model = timm.create_model(name, **kwargs)
    kinds = {type(m).__name__ for m in model.modules()}
    assert "SiLU" in kinds
    assert "ReLU" not in kinds
    x = images(name)
    with torch.no_grad():
        assert not torch.equal(model.train()(x), model(x))
        assert torch.equal(model.eval()(x), model(x))


@pytest.mark.parametrize("name", GLOBAL)
def test_steps_can_change(name):
    model, x = copy.deepcopy(fresh(name)), images(name)
    with torch.no_grad():
        before = model(x)
        model.set_steps(4)
        assert not torch.equal(model(x), before)
        made = timm.create_model(name, K=4).eval()
        made.load_state_dict(model.state_dict())
        assert torch.equal(made(x), model(x))


def test_a_model_without_global_layers_has_no_steps():
    with pytest.raises(ValueError, match="CifarResNet has no Global layer"):
        fresh("cifar_resnet32").set_steps(3)


def test_unknown_global_option_is_refused_with_the_valid_ones():
    with pytest.raises(ValueError, match=r"no option 'speed'; there are K, dt, .*velocity, diffusion"):
        timm.create_model("cifar_resnet32_global", global_options={"speed": 1})


def test_unknown_layout_is_refused_with_the_valid_ones():
    with pytest.raises(ValueError, match="layout must be one of 'counts', 'code', got 'paper'"):
        timm.create_model("efficientnet_b0_global", layout="paper")


def test_darts_without_room_for_global_layers_is_refused():
    from pdecnn.models.cifar_darts import DartsConfig

    with pytest.raises(ValueError, match=r"cells=4 the reductions are 1 and 2\. Use cells >= 5"):
        DartsConfig(4, 4, has_global=True)
    with pytest.raises(ValueError, match="cells must be at least 3"):
        DartsConfig(4, 2)


def test_auxiliary_head_gives_a_second_output_in_training():
    torch.manual_seed(0)
    model = timm.create_model("cifar_darts_tiny_global", aux_logits=True, drop_path_rate=0.1)
    x = torch.randn(2, 3, 32, 32)
    logits, aux = model.train()(x)
    assert logits.shape == aux.shape == (2, 10)
    (logits.square().sum() + 0.4 * aux.square().sum()).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.eval()(x).shape == (2, 10)
    model.set_drop_path(0.2)
    assert {m.drop_prob for m in model.modules() if hasattr(m, "drop_prob")} == {0.2}
    with pytest.raises(ValueError, match=r"rate must be in \[0, 1\), got 1.5"):
        model.set_drop_path(1.5)
    model.reset_classifier(3)
    assert [q.shape for q in model.train()(x)] == [(2, 3), (2, 3)]


def check_compile_and_export(name, backend):
    model, x = copy.deepcopy(fresh(name)), images(name)
    expected = model(x).detach()  # with gradients a layer runs part by part, as it does in a graph
    # untrained nets may answer with hundreds, and a graph may add in another order
    near = {"rtol": 1.3e-6, "atol": 1e-5 * max(1.0, float(expected.abs().max()))}
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=backend, fullgraph=True)(x), expected, **near)
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected, **near)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["cifar_resnet_tiny_global", "cifar_wrn_tiny_global", "mnist_toy_global"])
def test_compiles_and_exports_whole(name):
    check_compile_and_export(name, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in EAGER_ONLY])
def test_every_model_compiles_and_exports_whole(name):
    check_compile_and_export(name, "eager")


@pytest.mark.parametrize("name", ["cifar_resnet_tiny_global", "cifar_wrn_tiny_global", "mnist_resnet_tiny_global"])
def test_fx_features(name):
    """torch.fx takes a Global layer as a leaf, so timm's graph extractor works."""
    extractor = timm.create_model(name, features_only=True, feature_cls="fx").eval()
    assert [q.shape[1] for q in extractor(images(name))] == extractor.feature_info.channels()
