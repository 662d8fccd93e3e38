"""A model made ready to serve gives the same outputs, is really changed, and the model itself is not."""

import copy
import dataclasses
from itertools import product

import pytest
import timm
import torch
import torchvision
from torch import nn

import pdecnn
from pdecnn.layers import GlobalLayer
from pdecnn.layers.global_fusion import FusedGlobalLayer, covered

PLAIN = torch.contiguous_format


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(model, seed=0):
    """Norms that have seen something: folding them in changes every weight."""
    generator = torch.Generator().manual_seed(seed)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean, -0.2, 0.2, generator=generator)
            nn.init.uniform_(norm.running_var, 0.7, 1.5, generator=generator)
            nn.init.uniform_(norm.weight, 0.7, 1.3, generator=generator)
            nn.init.uniform_(norm.bias, -0.2, 0.2, generator=generator)
    return model.eval()


def count(model, kind):
    return sum(isinstance(m, kind) for m in model.modules())


def check(model, x, **options):
    """The copy, after comparison on inputs that it was not made with."""
    state = {name: q.clone() for name, q in model.state_dict().items()}
    training = [m.training for m in model.modules()]
    kinds = [type(m) for m in model.modules()]
    fast = pdecnn.optimize_for_inference(model, x, **options)
    assert [type(m) for m in model.modules()] == kinds
    assert [m.training for m in model.modules()] == training
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[name], q) for name, q in state.items())
    assert not any(m.training for m in fast.modules())
    other = sample(*x.shape, seed=1)
    with torch.no_grad():
        expected, out = copy.deepcopy(model).eval()(other), fast(other)
    assert (out - expected).abs().max() <= 1e-4 * expected.abs().max()
    return fast


@pytest.mark.parametrize(
    "name, norms_left",
    [("cifar_resnet32_global", 0), ("cifar_densenet_bc100_global", None), ("cifar_darts_tiny_global", None)],
)
@pytest.mark.parametrize("memory_format", [PLAIN, torch.channels_last])
def test_our_models(name, norms_left, memory_format):
    torch.manual_seed(0)
    model = trained(timm.create_model(name))
    plain = sum(isinstance(m, GlobalLayer) and covered(m) is not None for m in model.modules())
    fast = check(model, sample(2, 3, 32, 32), memory_format=memory_format)
    assert count(fast, FusedGlobalLayer) == plain > 0
    assert count(fast, nn.BatchNorm2d) < count(model, nn.BatchNorm2d)
    if norms_left is not None:
        assert count(fast, nn.BatchNorm2d) == norms_left


@pytest.mark.parametrize("name, norms_left", [("resnet18", 0), ("mobilenetv3_small_050", 0), ("densenet121", None)])
def test_models_of_timm(name, norms_left):
    torch.manual_seed(0)
    model = trained(timm.create_model(name, num_classes=7))
    fast = check(model, sample(1, 3, 64, 64), memory_format=PLAIN)
    assert count(fast, nn.BatchNorm2d) < count(model, nn.BatchNorm2d)
    if norms_left is not None:
        assert count(fast, nn.BatchNorm2d) == norms_left


def test_a_model_of_torchvision():
    torch.manual_seed(0)
    fast = check(trained(torchvision.models.resnet18(num_classes=7)), sample(1, 3, 64, 64))  # the format is measured
    assert count(fast, nn.BatchNorm2d) == 0


class Twice(nn.Module):
    """The convolution's output goes through the norm and, by one of several ways, around it."""

    def __init__(self, way):
        super().__init__()
        self.conv, self.norm, self.other = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.way = way

    def forward(self, x):
        y = self.conv(x)
        if self.way == "function":
            return self.norm(y) + y.sin()
        if self.way == "module":
            return self.norm(y) + self.other(y)
        if self.way == "norm twice":
            return self.norm(self.norm(y))
        if self.way == "convolution twice":
            return self.norm(y) + self.conv(x.flip(3))
        return self.norm(torch.relu_(y))


@pytest.mark.parametrize("way", ["function", "module", "norm twice", "convolution twice", "changed in place"])
def test_outputs_that_are_used_twice_are_not_folded(way):
    torch.manual_seed(0)
    fast = check(trained(Twice(way)), sample(2, 3, 8, 8), memory_format=PLAIN)
    assert count(fast, nn.BatchNorm2d) == 1


@pytest.mark.parametrize("name", ["cifar_resnet32", "cifar_resnet32_global", "cifar_wrn40_4_global"])
def test_activations_overwrite_what_nobody_else_reads(name):
    model = trained(timm.create_model(name))
    fast = check(model, sample(2, 3, 32, 32), memory_format=PLAIN)
    acts = [m for m in fast.modules() if isinstance(m, nn.ReLU)]
    assert acts
    assert all(m.inplace for m in acts)
    assert not any(m.inplace for m in model.modules() if isinstance(m, nn.ReLU))


class Shortcut(nn.Module):
    """The activation's input is read again after it, or is the input of the model."""

    def __init__(self, first):
        super().__init__()
        self.first, self.act = first, nn.ReLU()

    def forward(self, x):
        y = self.first(x)
        return self.act(y) + y


@pytest.mark.parametrize("first", [nn.Conv2d(3, 3, 1), nn.Identity()])
def test_what_is_read_again_is_not_overwritten(first):
    x = sample(2, 3, 8, 8)
    before = x.clone()
    fast = check(Shortcut(first), x, memory_format=PLAIN)
    assert not fast.act.inplace
    fast(x)
    assert torch.equal(x, before)


class Repeated(nn.Module):
    """Lines that make a copy for one layout, dtype or batch and none for another, or that do not bear a change."""

    def __init__(self, way):
        super().__init__()
        self.way, self.conv, self.norm, self.act = way, nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()
        if way == "parametrized":
            nn.utils.parametrizations.weight_norm(self.conv)

    def forward(self, x):
        if self.way == "input in another layout":
            return self.act(x.contiguous(memory_format=torch.channels_last)).sum((1, 2, 3))
        if self.way == "input in another dtype":
            return self.act(x.float()).sum((1, 2, 3))
        if self.way == "under vmap":
            return torch.vmap(lambda q: self.act(self.conv(q)))(x)
        if self.way == "inference mode inside":
            with torch.inference_mode():
                y = self.conv(x)
            return self.act(y)
        y = self.norm(self.conv(x))
        if self.way == "layout":
            return y + self.act(y.permute(0, 2, 3, 1).contiguous()).permute(0, 3, 1, 2)
        if self.way == "batch":
            return self.act(y.transpose(0, 1).reshape(4, -1)).sum() + y
        return self.act(y)


WAYS = ["input in another layout", "layout", "batch", "under vmap", "inference mode inside", "parametrized"]


@pytest.mark.parametrize("made_with", [PLAIN, torch.channels_last])
@pytest.mark.parametrize("way", WAYS)
def test_other_layouts_and_batches_than_the_example(way, made_with):
    torch.manual_seed(0)
    model = trained(Repeated(way))
    for example in (sample(2, 3, 4, 4), sample(1, 3, 4, 4)):
        fast = pdecnn.optimize_for_inference(model, example, memory_format=made_with)
        for batch, form in product((1, 2, 5), (PLAIN, torch.channels_last)):
            x = sample(batch, 3, 4, 4, seed=1).contiguous(memory_format=form)
            before = x.clone()
            with torch.no_grad():
                torch.testing.assert_close(fast(x), model(before), rtol=1e-4, atol=1e-5)
            assert torch.equal(x, before)


def test_an_input_of_another_dtype_than_the_example():
    x = sample(2, 3, 4, 4)
    before = x.clone()
    fast = pdecnn.optimize_for_inference(Repeated("input in another dtype"), x.double(), memory_format=PLAIN)
    fast(x)
    assert torch.equal(x, before)


@dataclasses.dataclass
class Pair:
    activated: torch.Tensor
    positive: torch.Tensor


class Both(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.conv, self.act = kind, nn.Conv2d(3, 4, 1), nn.ReLU()

    def forward(self, x):
        y = self.conv(x)
        return self.kind(self.act(y), y > 0)


def test_outputs_in_dataclasses_and_of_bools_are_compared():
    model, other = Both(Pair), sample(2, 3, 4, 4, seed=1)
    fast = pdecnn.optimize_for_inference(model, sample(2, 3, 4, 4), memory_format=PLAIN)
    with torch.no_grad():
        out, expected = fast(other), model(other)
    assert torch.equal(out.activated, expected.activated)
    assert torch.equal(out.positive, expected.positive)


def test_outputs_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="gives no tensor to compare"):
        pdecnn.optimize_for_inference(Both(lambda a, b: object()), sample(1, 3, 4, 4))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # deprecated, but people have such models
def test_scripted_parts_are_refused():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), torch.jit.script(nn.ReLU()))
    with pytest.raises(ValueError, match="Script the copy instead"):
        pdecnn.optimize_for_inference(model, sample(1, 3, 4, 4))


def test_the_example_is_as_before():
    x = sample(2, 3, 4, 4)
    before = x.clone()
    pdecnn.optimize_for_inference(nn.Sequential(nn.SiLU(inplace=True), nn.Conv2d(3, 4, 1), nn.ReLU()), x)
    assert torch.equal(x, before)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return {"features": self.norm(y), "more": [y]}


def test_every_output_is_compared():
    torch.manual_seed(0)
    model, x = trained(TwoOutputs()), sample(2, 3, 8, 8)
    fast = pdecnn.optimize_for_inference(model, x, memory_format=PLAIN)
    with torch.no_grad():
        out, expected = fast(x), model(x)
    torch.testing.assert_close(out["features"], expected["features"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out["more"], expected["more"], rtol=1e-4, atol=1e-4)


def test_the_format_that_is_asked_for_is_taken():
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    for memory_format in (PLAIN, torch.channels_last):
        fast = check(model, sample(1, 3, 8, 8), memory_format=memory_format)
        assert fast[0].weight.is_contiguous(memory_format=memory_format)
        assert isinstance(fast[1], nn.Identity)
    assert not any(p.requires_grad for p in fast.parameters())


def test_a_norm_without_statistics_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    assert count(check(model, sample(2, 3, 8, 8), memory_format=PLAIN), nn.BatchNorm2d) == 1


def test_a_model_in_training_mode_keeps_it():
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))).train()
    check(model, sample(2, 3, 8, 8), memory_format=PLAIN)
    assert model.training


def test_the_example_is_made_from_the_configuration_and_leaves_the_random_state():
    model = trained(timm.create_model("cifar_resnet32_global"))
    before = torch.get_rng_state()
    fast = pdecnn.optimize_for_inference(model, memory_format=PLAIN)
    assert torch.equal(torch.get_rng_state(), before)
    assert count(fast, FusedGlobalLayer) > 0


def test_a_model_without_a_size_needs_an_example():
    message = r"the model does not say its input size; pass example_inputs, e\.g\. torch\.randn\(1, 3, 224, 224\)"
    with pytest.raises(ValueError, match=message):
        pdecnn.optimize_for_inference(nn.Conv2d(3, 4, 3))


def test_an_example_elsewhere_is_refused():
    with pytest.raises(ValueError, match=r"example_inputs is on meta, the model on cpu\. Move one to the other"):
        pdecnn.optimize_for_inference(nn.Conv2d(3, 4, 3), torch.empty(1, 3, 8, 8, device="meta"))
