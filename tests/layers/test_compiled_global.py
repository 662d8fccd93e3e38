"""A Global layer under torch.compile: its operators stay whole, in one graph, with what they compute without it."""

import copy
from collections import Counter
from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_func
from global_layers import Operators, make, randomised, sample
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from pdecnn.kernels.registry import is_native
from pdecnn.layers import BasicBlock, GlobalLayer

OLD = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 14)
pytestmark = [
    pytest.mark.skipif(not is_native("global_layer"), reason="no native library with this operator here"),
    pytest.mark.skipif(OLD, reason="before torch 2.14 compiled code is told that it is exported, and taken apart"),
]

SHAPE = (3, 4, 9, 8)
FORMATS = (torch.contiguous_format, torch.channels_last)


class Graphs:
    """A backend that runs the graphs as they are and counts the operators of forward and backward."""

    def __init__(self):
        self.forward, self.backward = Counter(), Counter()

    def __call__(self, graph, inputs):
        def counting(counter):
            def compile_graph(graph, inputs):
                counter.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
                return make_boxed_func(graph.forward)

            return compile_graph

        kinds = {"fw_compiler": self.forward, "bw_compiler": self.backward, "inference_compiler": self.forward}
        return aot_autograd(**{name: counting(counter) for name, counter in kinds.items()})(graph, inputs)


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def ours(counter):
    """The operators of pdecnn by name, and how often each is there."""
    found = ((name.split("."), n) for name, n in counter.items() if name.startswith("pdecnn."))
    return {parts[1]: n for parts, n in found}


def training_step(call, layer, x):
    """Output, gradients and statistics of one pass."""
    x = x.detach().clone().requires_grad_()
    out = call(x)
    (out * sample(*out.shape, seed=1, dtype=out.dtype)).sum().backward()
    named = {name: p.grad for name, p in layer.named_parameters()} | {"x": x.grad}
    return {"out": out.detach(), **named, **{name: q.clone() for name, q in layer.named_buffers()}}


def assert_compiled_is_eager(layer, x):
    """The compiled layer gives, in two steps, what the layer gives, and returns its graphs."""
    graphs, twin = Graphs(), copy.deepcopy(layer)
    compiled = torch.compile(twin, backend=graphs, fullgraph=True)
    for _ in range(2):
        expected, found = training_step(layer, layer, x), training_step(compiled, twin, x)
        for name, q in expected.items():
            torch.testing.assert_close(found[name], q, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    return graphs


@pytest.mark.parametrize(
    "name, order", [("default", FORMATS[0]), ("default", FORMATS[1]), ("input before", FORMATS[1])]
)
def test_in_training_forward_and_backward_are_one_operator_each(name, order):
    torch.manual_seed(0)
    layer = make(name).train()
    graphs = assert_compiled_is_eager(layer, sample(*SHAPE, dtype=torch.float32).contiguous(memory_format=order))
    assert ours(graphs.forward)["global_training"] == 1
    assert ours(graphs.backward)["global_training_backward"] == 1
    inside = {"depthwise_norm", "advection_diffusion", "advection_diffusion_backward"}
    parts = Counter(ours(graphs.forward)) + Counter(ours(graphs.backward))
    assert all(parts[name] <= (name == "depthwise_norm") for name in inside), parts
    convolutions = [n for op, n in graphs.forward.items() if "convolution" in op]
    assert sum(convolutions) == (2 if name == "input before" else 0)  # those of the first guess


@pytest.mark.parametrize("name", ["upwind", "silu"])
def test_layers_that_no_operator_covers_compile_too(name):
    torch.manual_seed(0)
    assert_compiled_is_eager(make(name).train(), sample(*SHAPE, dtype=torch.float32))


def test_the_average_of_all_batches_is_counted():
    norm = partial(nn.BatchNorm2d, momentum=None)
    layer = GlobalLayer(SHAPE[1], K=2, norm_layer=norm).train()
    graphs = assert_compiled_is_eager(layer, sample(*SHAPE, dtype=torch.float32))
    assert ours(graphs.forward)["global_training"] == 1


@torch.no_grad()
def test_in_evaluation_it_is_one_operator():
    layer, graphs = randomised(make("default").float()), Graphs()
    x = sample(*SHAPE, dtype=torch.float32)
    compiled = torch.compile(layer, backend=graphs, fullgraph=True)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-5)
    assert ours(graphs.forward) == {"global_layer": 1}
    assert not any("convolution" in op for op in graphs.forward)


@pytest.mark.parametrize("part, value", [("dt", 0.1), ("act", nn.Tanh()), ("source", nn.Tanh())])
def test_a_change_after_the_first_call_counts(part, value):
    layer, x = make("default").train(), sample(*SHAPE, dtype=torch.float32)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    before = compiled(x)
    setattr(layer, part, value)
    torch.testing.assert_close(compiled(x), copy.deepcopy(layer)(x))
    assert not torch.allclose(compiled(x), before)


def test_an_exported_layer_is_taken_apart_for_runtimes_without_our_operators():
    layer = randomised(make("default").float())
    with torch.no_grad():
        program = torch.export.export(layer, (sample(*SHAPE, dtype=torch.float32),))
    names = {str(node.target) for node in program.graph.nodes}
    assert not any("global_layer" in name or "global_training" in name for name in names)
    assert any("conv2d" in name for name in names)


@pytest.mark.slow
def test_the_compiler_calls_the_operators_and_fuses_what_is_around_them():
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    net = nn.Sequential(BasicBlock(4, 4), GlobalLayer(4, K=2), nn.Tanh()).train()
    x, twin = sample(*SHAPE, dtype=torch.float32), copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True)
    found, code = run_and_get_code(lambda: training_step(compiled, twin, x))
    text = "\n".join(code)
    assert text.count("torch.ops.pdecnn.global_training.default(") == 1
    assert text.count("torch.ops.pdecnn.global_training_backward.default(") == 1
    assert "cpp_fused" in text
    with Operators() as seen:
        expected = training_step(net, net, x)
    assert "global_training" in seen.names
    for name, q in expected.items():
        torch.testing.assert_close(found[name], q, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
