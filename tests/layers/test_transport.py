"""Transport with constants: against differences written out, by the moments of its kernel, and as it is exported."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pdecnn
from pdecnn.deploy.lower import lower
from pdecnn.layers.transport import Transport

CASES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))


def drawn(axes, K, channels, seed):
    torch.manual_seed(seed)
    layer = Transport(channels, K=K, axes=axes, dtype=torch.float64)
    torch.nn.init.normal_(layer.diffusion)
    return layer


def stepped(layer, h):
    """The same by K steps of differences on a map with a wide border of zeros."""
    K, axes = layer.K, layer.axes
    h = torch.nn.functional.pad(h, [2 * K] * (2 * axes))
    per_channel = (1, -1, *[1] * axes)
    for _ in range(K):
        change = torch.zeros_like(h)
        for i in range(axes):
            after, before = torch.roll(h, -1, i + 2), torch.roll(h, 1, i + 2)
            change -= layer.velocity[i].view(per_channel) * (after - before) / 2
            change += layer.diffusion[i].view(per_channel) * (after - 2 * h + before)
        h = h + change
    return h[(..., *[slice(2 * K, -2 * K)] * axes)]


@given(CASES)
@settings(deadline=None, max_examples=40)
def test_the_kernel_is_k_steps_of_differences(case):
    layer = drawn(*case)
    h = torch.randn(2, layer.channels, *(5, 6, 4)[: layer.axes], dtype=torch.float64)
    torch.testing.assert_close(layer(h), stepped(layer, h), rtol=1e-10, atol=1e-10)


@given(CASES)
@settings(deadline=None, max_examples=40)
def test_mass_stays_the_centre_moves_and_the_width_grows_as_the_equation_says(case):
    layer = drawn(*case)
    kernel, K = layer.kernel().detach().squeeze(1), layer.K
    space = tuple(range(1, kernel.ndim))
    torch.testing.assert_close(kernel.sum(space), torch.ones(layer.channels, dtype=torch.float64))
    for i in range(layer.axes):
        offsets = -torch.arange(-K, K + 1, dtype=torch.float64)  # a kernel reads from where the mass comes
        along = kernel.sum([d for d in space if d != i + 1]) if layer.axes > 1 else kernel
        mean = (along * offsets).sum(1)
        torch.testing.assert_close(mean, K * layer.velocity[i], rtol=1e-9, atol=1e-9)
        spread = (along * offsets**2).sum(1) - mean**2
        wanted = K * (2 * layer.diffusion[i] - layer.velocity[i] ** 2)
        torch.testing.assert_close(spread, wanted.detach(), rtol=1e-9, atol=1e-8)


@given(CASES, st.integers(1, 3))
@settings(deadline=None, max_examples=20)
def test_shared_coefficients_are_those_of_each_channel_of_a_group(case, share):
    axes, K, groups, seed = case
    few = drawn(axes, K, groups, seed)
    both = Transport(groups * share, K=K, axes=axes, share=share, dtype=torch.float64)
    both.load_state_dict(few.state_dict())
    h = torch.randn(2, groups, share, *(5, 6, 4)[:axes], dtype=torch.float64)
    wanted = torch.stack([few(h[:, :, i]) for i in range(share)], dim=2)
    torch.testing.assert_close(both(h.flatten(1, 2)), wanted.flatten(1, 2), rtol=1e-10, atol=1e-10)


def test_gradients():
    layer = drawn(2, 3, 2, 0)
    h = torch.randn(1, 2, 4, 5, dtype=torch.float64, requires_grad=True)

    def run(h, velocity, diffusion):
        return torch.func.functional_call(layer, {"velocity": velocity, "diffusion": diffusion}, (h,))

    assert torch.autograd.gradcheck(run, (h, layer.velocity, layer.diffusion))


def test_it_is_exported_as_one_convolution():
    layer, h = Transport(3, K=3), torch.randn(2, 3, 8, 8)
    graph = lower(layer, h)
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert len(calls) == 1
    assert "conv" in calls[0]
    torch.testing.assert_close(graph(h), layer(h))


@pytest.mark.parametrize("options", [{"K": 0}, {"K": 17}, {"axes": 4}, {"share": 2}])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="Transport: " + next(iter(options))):
        Transport(3, **options)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_for_inference_it_is_a_convolution(axes):
    torch.manual_seed(0)
    layer, h = Transport(3, K=2, axes=axes), torch.randn(2, 3, *[7] * axes)
    conv = layer.to_conv()
    torch.testing.assert_close(conv(h), layer(h))
    assert not conv.weight.requires_grad
    net = torch.nn.Sequential(layer, torch.nn.ReLU()).eval()
    fast = pdecnn.optimize_for_inference(net, h)
    assert not any(isinstance(m, Transport) for m in fast.modules())
    torch.testing.assert_close(fast(h), net(h))
