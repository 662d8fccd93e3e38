"""Applying a plan: the given model is untouched, kept weights are kept, saved and loaded models agree."""

import copy

import pytest
import timm
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_networks import Net, Residual, specs
from torch import Tensor, nn

import pdecnn
from pdecnn.condensation import Plan, register_block, save_condensed
from pdecnn.condensation.apply import apply_runs
from pdecnn.condensation.blocks import _REPLACEMENTS
from pdecnn.condensation.checkpoint import describe
from pdecnn.condensation.find import find_runs
from pdecnn.condensation.plan import Plan as PlanClass
from pdecnn.condensation.record import record
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.models.build import build_model
from pdecnn.training import load_checkpoint

X = torch.randn(2, 3, 9, 9)


def plan_of(model: nn.Module, keep: int = 1, init: str = "identity") -> Plan:
    """A plan for every run, also where it saves nothing."""
    import dataclasses

    runs, skipped = find_runs(model, record(model, (X,)))
    kept = [dataclasses.replace(r, keep=min(keep, len(r.units)), init=init) for r in runs]
    return PlanClass(type(model).__name__, ((2, 3, 9, 9),), tuple(kept), tuple(skipped))


@settings(max_examples=25, deadline=None)
@given(specs, st.integers(1, 3), st.sampled_from(["identity", "block"]))
def test_apply_leaves_the_model_alone_and_keeps_weights(spec, keep, init):
    model = Net(spec)
    before = copy.deepcopy(model.state_dict())
    text = repr(model)
    plan = plan_of(model, keep, init)
    small = plan.apply(model)
    assert repr(model) == text
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    removed = tuple(f"{m}." for run in plan.runs if run.condenses for m in run.members(run.keep))
    kept = {k: v for k, v in before.items() if not k.startswith(removed)}
    new = small.state_dict()
    assert all(torch.equal(new[k], v) for k, v in kept.items())
    pointers = {p.data_ptr() for p in model.parameters()}
    assert not any(p.data_ptr() in pointers for p in small.parameters())
    assert small.eval()(X).shape == model.eval()(X).shape


@settings(max_examples=25, deadline=None)
@given(specs, st.integers(1, 3), st.sampled_from(["identity", "block"]))
def test_every_run_gets_one_global_layer_at_its_site(spec, keep, init):
    model = Net(spec)
    plan = plan_of(model, keep, init)
    small = plan.apply(model)
    found = [name for name, m in small.named_modules() if isinstance(m, GlobalLayer)]
    assert found == [run.site for run in plan.runs if run.condenses]
    small.train()(X).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in small.parameters())


@settings(max_examples=20, deadline=None)
@given(specs, st.integers(1, 3))
def test_a_plan_replayed_from_json_gives_the_same_model_bitwise(tmp_path_factory, spec, keep):
    model = Net(spec)
    plan = plan_of(model, keep)
    loaded = Plan.load(plan.save(tmp_path_factory.mktemp("plan") / "plan.json"))
    assert loaded == plan
    small, twin = plan.apply(model).eval(), loaded.apply(Net(spec)).eval()
    twin.load_state_dict(small.state_dict())
    with torch.no_grad():
        assert torch.equal(small(X), twin(X))


@settings(max_examples=20, deadline=None)
@given(specs)
def test_where_the_map_is_signed_a_fresh_layer_is_the_identity(spec):
    model = Net(spec)
    runs = [r for r in plan_of(model).runs if r.signed]
    small = apply_runs(model, runs).eval()
    for run in runs:
        h = torch.randn(1, *run.shape)
        with torch.no_grad():
            torch.testing.assert_close(small.get_submodule(run.site)(h), h)


def test_the_first_removed_block_makes_the_first_guess():
    model = timm.create_model("cifar_resnet32")
    plan = pdecnn.plan(model, torch.randn(1, 3, 32, 32), init="block")
    small = plan.apply(model)
    layer = small.get_submodule(plan.runs[0].site)
    assert isinstance(layer, GlobalLayer)
    assert torch.equal(layer.init.conv1.weight, model.stages[0][1].conv1.weight)


@pytest.mark.parametrize("kind", ["timm", "ours", "torchvision", "dense", "grey"])
def test_saved_and_loaded_models_agree_bitwise(kind, tmp_path):
    channels, size = (1, 28) if kind == "grey" else (3, 64)
    model = {
        "timm": lambda: timm.create_model("resnet18", num_classes=7),
        "ours": lambda: timm.create_model("cifar_resnet32"),
        "torchvision": lambda: torchvision.models.mobilenet_v2(num_classes=4),
        "dense": lambda: timm.create_model("densenet121", num_classes=5),
        "grey": lambda: timm.create_model("cifar_resnet56", in_chans=1, drop_path_rate=0.1),
    }[kind]()
    x = torch.randn(2, channels, size, size)
    small, _ = pdecnn.condense(model, x[:1])
    folder = save_condensed(tmp_path / "small", small, note="here")
    assert {p.name for p in folder.iterdir()} == {"config.json", "model.safetensors", "manifest.json"}
    loaded = load_checkpoint(folder)
    assert loaded.config["note"] == "here"
    with torch.no_grad():
        assert torch.equal(loaded.model(x), small.eval()(x))


def test_a_model_of_no_registry_needs_its_maker(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 32, 3), *(Residual(32, 32, 1, False, True) for _ in range(4)))
    small, _ = pdecnn.condense(model, torch.randn(1, 3, 12, 12))
    save_condensed(tmp_path / "small", small)
    with pytest.raises(ValueError, match=r"your own code, torch.nn.modules.container:Sequential.*factory=Sequential"):
        pdecnn.load(tmp_path / "small")
    loaded = pdecnn.load(tmp_path / "small", factory=lambda: model)
    assert torch.equal(loaded(x := torch.randn(2, 3, 12, 12)), small.eval()(x))
    with pytest.raises(ValueError, match="is not a condensed model"):
        save_condensed(tmp_path / "small", model)


def test_classes_that_were_reset_are_saved(tmp_path):
    x = torch.randn(2, 3, 32, 32)
    small, _ = pdecnn.condense(timm.create_model("cifar_resnet32", num_classes=7), x[:1])
    small.reset_classifier(3)
    loaded = load_checkpoint(save_condensed(tmp_path / "small", small)).model
    with torch.no_grad():
        assert torch.equal(loaded(x), small.eval()(x))
    small.stages[1][0] = nn.Identity()
    with pytest.raises(ValueError, match="is not what its plan makes of its base any more"):
        save_condensed(tmp_path / "other", small)
    assert not (tmp_path / "other").exists()


def test_what_no_module_shows_is_described():
    with torch.device("meta"):
        model = torchvision.models.inception_v3(init_weights=False, num_classes=5, transform_input=True)
    description = describe(model)
    assert description["kwargs"] == {"num_classes": 5, "transform_input": True}
    with torch.device("meta"):
        assert build_model(description).transform_input


def test_building_a_model_of_torchvision_downloads_nothing(monkeypatch):
    asked = {}
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **kwargs: asked.update({name: kwargs}))
    build_model({"builder": "torchvision", "name": "fcn_resnet50"})
    build_model({"builder": "torchvision", "name": "resnet18"})
    assert asked == {"fcn_resnet50": {"weights": None, "weights_backbone": None}, "resnet18": {"weights": None}}


def test_blocks_with_two_names_go_under_both():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (Residual(16, 16, 1, False, True) for _ in range(4))
            self.decayed = nn.ModuleList([self.a, self.b, self.c, self.d])

        def forward(self, x: Tensor) -> Tensor:
            return self.d(self.c(self.b(self.a(x))))

    small, report = pdecnn.condense(Named(), torch.randn(1, 16, 9, 9), replacement="paper")
    assert report.after.params == report.plan.after.params < report.before.params
    assert small.decayed[3] is small.d
    assert isinstance(small.d, GlobalLayer)


def test_blocks_that_are_called_under_their_second_name():
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Residual(16, 16, 1, False, True) for _ in range(4))
            self.body = nn.Sequential(*self.blocks)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    small, report = pdecnn.condense(Called(), torch.randn(1, 16, 9, 9), replacement="paper")
    assert (report.after.params, report.after.exact) == (report.plan.after.params, report.plan.after.macs)
    assert report.after.exact < report.before.exact
    assert small.body[-1] is small.blocks[-1]
    assert isinstance(small.body[-1], GlobalLayer)


class DenseLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.norm(x).relu())


class DenseBlock(nn.Module):
    """Layers in a list, as most people write it; all maps are concatenated at once, or one by one."""

    def __init__(self, width: int, depth: int, at_once: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(width + 8 * i) for i in range(depth))
        self.at_once = at_once

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps = [*maps, layer(torch.cat(maps, 1))] if self.at_once else [torch.cat([maps[0], layer(maps[0])], 1)]
        return torch.cat(maps, 1) if self.at_once else maps[0]


def dense_net(at_once: bool) -> nn.Module:
    transition = nn.Sequential(nn.BatchNorm2d(64), nn.Conv2d(64, 32, 1), nn.AvgPool2d(2))
    blocks = DenseBlock(16, 6, at_once), transition, DenseBlock(32, 4, at_once)
    return nn.Sequential(nn.Conv2d(3, 16, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))


@pytest.mark.parametrize("at_once", [True, False])
def test_dense_layers_in_a_list_are_shortened(at_once):
    model = dense_net(at_once)
    plan = pdecnn.plan(model, X)
    assert [(r.path, len(r.units), r.keep) for r in plan.runs] == [("1.layers.0-5", 6, 3), ("3.layers.0-3", 4, 2)]
    small = plan.apply(model)
    assert small[2][1].in_channels == 40
    assert small[6].in_features == 48
    small.train()(X).sum().backward()
    assert all(p.grad is not None for p in small.parameters())


def test_the_global_layer_after_a_transition_is_fitted_to_it():
    torch.manual_seed(0)
    _, report = pdecnn.condense(dense_net(True), X, data=torch.randn(16, 3, 9, 9), fit={"steps": 5})
    (fitted,) = report.fitted
    assert fitted.site == "2.global_layer"
    assert fitted.after < fitted.skipped


def test_dense_blocks_are_shortened_and_their_readers_narrowed():
    model = timm.create_model("densenet121", num_classes=5).eval()
    x = torch.randn(2, 3, 64, 64)
    plan = pdecnn.plan(model, x[:1], replacement="paper")
    small = plan.apply(model).eval()
    assert [(len(r.units), r.keep) for r in plan.runs] == [(6, 3), (12, 6), (24, 12), (16, 8)]
    conv, old = small.features.transition1.conv, model.features.transition1.conv
    assert conv.in_channels == 64 + 3 * 32
    assert torch.equal(conv.weight, old.weight[:, :160])
    assert isinstance(small.features.transition1.global_layer, GlobalLayer)
    assert small.num_features == small.classifier.in_features == 512 + 8 * 32
    assert small(x).shape == (2, 5)
    assert model(x).shape == (2, 5)
    widths = {f["module"]: f["num_chs"] for f in small.feature_info}
    assert widths["features.denseblock1"] == 160
    assert widths["features.norm5"] == 768


def test_growing_blocks_are_shortened_too():
    model = timm.create_model("cifar_densenet_bc100")
    plan = pdecnn.plan(model, torch.randn(1, 3, 32, 32))
    assert {r.kind for r in plan.runs} == {"growing"}
    small = plan.apply(model)
    small.train()(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in small.parameters())


def test_the_surface_of_timm_is_kept():
    model = timm.create_model("resnet18", num_classes=7)
    small, _ = pdecnn.condense(model, torch.randn(1, 3, 64, 64))
    small.eval()
    x = torch.randn(2, 3, 64, 64)
    features = small.forward_features(x)
    torch.testing.assert_close(small.forward_head(features), small(x))
    last, maps = small.forward_intermediates(x)
    assert torch.equal(last, features)
    assert [m.shape[1] for m in maps] == [64, 64, 128, 256, 512]
    small.reset_classifier(3)
    assert small(x).shape == (2, 3)
    assert small.get_classifier().out_features == 3


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "densenet121"])
def test_backbones_made_with_features_only_are_condensed(name):
    model = timm.create_model(name, features_only=True)
    x = torch.randn(1, 3, 64, 64)
    small, report = pdecnn.condense(model, x)
    before, after = model.eval()(x), small.eval()(x)
    assert [m.shape[2:] for m in after] == [m.shape[2:] for m in before]
    assert report.after.params < report.before.params


def test_hooks_of_the_last_block_go_to_the_global_layer_and_inner_ones_forbid():
    model = timm.create_model("cifar_resnet32")
    seen: list[str] = []
    model.stages[0][4].register_forward_hook(lambda m, i, o: seen.append("last"))
    model.stages[1][2].conv1.register_forward_hook(lambda m, i, o: seen.append("inner"))
    plan = pdecnn.plan(model, torch.randn(1, 3, 32, 32))
    assert [r.path for r in plan.runs] == ["stages.0.0-4", "stages.2.0-4"]
    assert any("a forward hook reads stages.1.2.conv1" in s.reason for s in plan.skipped)
    small = plan.apply(model)
    seen.clear()
    small(torch.randn(1, 3, 32, 32))
    assert sorted(seen) == ["inner", "last"]


def test_registered_blocks_are_replaced_by_what_the_user_says():
    class Mine(Residual):
        pass

    class Half(nn.Module):
        def __init__(self, block: nn.Module) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x) / 2

    @register_block(Mine)
    def half(blocks, run):
        return Half(blocks[0])

    try:
        model = nn.Sequential(nn.Conv2d(3, 32, 3), *(Mine(32, 32, 1, False, True) for _ in range(4))).eval()
        small, _ = pdecnn.condense(model, torch.randn(1, 3, 12, 12))
        x = torch.randn(1, 3, 12, 12)
        torch.testing.assert_close(small.eval()(x), model[2](model[1](model[0](x))) / 2)
    finally:
        del _REPLACEMENTS[Mine]
    with pytest.raises(TypeError, match="expected a class of modules"):
        register_block("Mine")  # type: ignore[arg-type]


@pytest.mark.parametrize("width, dear", [(4, False), (16, True)])
def test_what_is_registered_is_counted_and_refused_if_it_saves_nothing(width, dear):
    class Mine(Residual):
        pass

    register_block(Mine)(lambda blocks, run: nn.Conv2d(width, width, 9, padding=4) if dear else nn.Identity())
    try:
        model = nn.Sequential(nn.Conv2d(3, width, 3), *(Mine(width, width, 1, not dear, True) for _ in range(2)))
        if dear:
            with pytest.raises(ValueError, match="1-2: what is registered for them would cost as much"):
                pdecnn.plan(model, X)
        else:  # a Global layer would cost as much as the blocks
            _, report = pdecnn.condense(model, X)
            assert report.plan.after.params == report.after.params < report.before.params
    finally:
        del _REPLACEMENTS[Mine]


@pytest.mark.parametrize("name", ["cifar_resnet32", "mobilenetv3_small_050", "convnext_atto"])
def test_condensed_models_export(name):
    size = 32 if name.startswith("cifar") else 64
    x = torch.randn(2, 3, size, size)
    small, _ = pdecnn.condense(timm.create_model(name), x[:1])
    program = torch.export.export(small.eval(), (x,))
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), small(x))


def test_a_plan_for_another_model_is_refused():
    plan = pdecnn.plan(timm.create_model("cifar_resnet56"), torch.randn(1, 3, 32, 32))
    with pytest.raises(ValueError, match="made for 'cifar_resnet56', the model is 'cifar_resnet32'"):
        plan.apply(timm.create_model("cifar_resnet32"))
