"""A copy of a trained model that is ready to serve."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.nn.utils.parametrize import is_parametrized

from pdecnn.analysis.latency import measure
from pdecnn.analysis.reads import last_readers
from pdecnn.deploy.int8 import calibration_batches
from pdecnn.deploy.served import TRIED_BY_AUTO, check_runtime, fastest, serve
from pdecnn.layers.global_fusion import fused
from pdecnn.layers.global_layer import GlobalLayer
from pdecnn.layers.global_layer_nd import GLOBAL_LAYERS
from pdecnn.layers.step_norm import StepNorm, copied
from pdecnn.layers.transport import Transport
from pdecnn.shared.modules import listen, replace, tensors_in

TOLERANCE = 1e-4  # of the outputs' largest absolute value
FORMATS = (torch.contiguous_format, torch.channels_last)


def optimize_for_inference(
    model: nn.Module,
    example_inputs: Tensor | None = None,
    *,
    runtime: str | Sequence[str] = "optimized",
    memory_format: torch.memory_format | None = None,
    int8: Tensor | Iterable[Tensor | Sequence[Tensor]] | None = None,
) -> nn.Module:
    """Returns a copy of `model` for inference with the same outputs; the model itself is left as it is.

    By default it stays in torch: Global layers become one kernel each, batch norms that directly follow a convolution
    are folded into it, activations overwrite an input that nothing else uses, and the weights are laid out in the
    faster of the two memory formats, by measurement. Outputs before and after are compared on the example: what changes
    them by more than 1e-4 of the largest one, or fails, is not done. The copy is for inference and has no gradients.

    With another `runtime` it is a `Served`, a module that hands its input to, say, ONNX Runtime. It takes any batch of
    inputs like the example, may be called from several threads, copied and pickled, has as many threads as torch has
    now, and says in `runtime` and when printed where it runs.

    Args:
        model: Any model; plain CNNs, ours and condensed ones.
        example_inputs: A batch as the copy will be served; its size matters for the measurement. By default one image
            of the model's `pretrained_cfg["input_size"]`, as timm's models have it.
        runtime: `"optimized"` (in torch, as above), `"eager"`, `"compile"`, `"onnx"`, `"onnx-fused"`, `"c"`,
            `"onnx-int8"`, `"c-int8"`; several of them to take the fastest for the example; or `"auto"`: the fastest of
            optimized, onnx-fused, onnx and c, as far as they are installed and can run the model.
        memory_format: `torch.contiguous_format` or `torch.channels_last` to skip the measurement.
        int8: Batches of training inputs to calibrate the runtimes of 8 bits with; their outputs differ by design.

    Example:
        >>> import timm, pdecnn
        >>> fast = pdecnn.optimize_for_inference(timm.create_model("cifar_resnet32_global"))
        >>> with torch.no_grad():
        ...     fast(torch.randn(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    x = _example(model, example_inputs)
    names = [runtime] if isinstance(runtime, str) else list(runtime)
    for name in names:
        check_runtime("optimize_for_inference", name)
    if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
        raise ValueError("optimize_for_inference: parts of the model are scripted or traced. Script the copy instead.")
    original = copy.deepcopy(model).eval().requires_grad_(False)
    if names == ["optimized"]:
        return _optimized(original, x, memory_format)
    batches = None if int8 is None else calibration_batches(int8, (x,))
    optimized = partial(_optimized, original, x, memory_format)
    make = partial(serve, model=original, x=x, optimized=optimized, int8=batches)
    if "auto" in names or len(names) > 1:
        return fastest(TRIED_BY_AUTO if "auto" in names else names, x, make)
    return make(names[0])


def _optimized(original: nn.Module, x: Tensor, memory_format: torch.memory_format | None) -> nn.Module:
    with torch.no_grad():
        expected = tensors_in(original(x.clone()))
        if not expected:
            raise ValueError(
                "optimize_for_inference: the model gives no tensor to compare. Let it return tensors, or lists, dicts "
                "or dataclasses of them."
            )
        fast = original
        for change in (_fuse_global_layers, _fix_transport, _fold_batch_norms, _activate_in_place):
            fast = _kept_if_equal(fast, change, x, expected)
        form = memory_format or _faster_format(fast, x.clone())
        return _kept_if_equal(fast, lambda m, _: m.to(memory_format=form), x, expected).eval()


def _example(model: nn.Module, given: Tensor | None) -> Tensor:
    parameter = next(model.parameters(), None)
    if given is not None:
        if parameter is not None and given.device != parameter.device:
            raise ValueError(
                f"optimize_for_inference: example_inputs is on {given.device}, the model on {parameter.device}. "
                "Move one to the other."
            )
        return given
    cfg: Any = getattr(model, "pretrained_cfg", None) or {}
    size = cfg.get("input_size") if isinstance(cfg, dict) else getattr(cfg, "input_size", None)
    if size is None:
        raise ValueError(
            "optimize_for_inference: the model does not say its input size; pass example_inputs, "
            "e.g. torch.randn(1, 3, 224, 224)."
        )
    channels = getattr(model, "in_chans", size[0])
    like = torch.empty(0) if parameter is None else parameter
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.randn(1, channels, *size[1:]).to(device=like.device, dtype=like.dtype)


def _fuse_global_layers(model: nn.Module, _: Tensor) -> None:
    replace(model, lambda m: fused(m) if isinstance(m, GlobalLayer) and m is not model else m)


def _fix_transport(model: nn.Module, _: Tensor) -> None:
    """Makes transport with constants the convolution that it is, so that its stencil is not computed in each call."""
    inside = {part for m in model.modules() if isinstance(m, GLOBAL_LAYERS) for part in m.modules()}

    def fixed(m: nn.Module) -> nn.Module:
        if isinstance(m, StepNorm) and m not in inside:  # that of a layer which is fixed too
            return cast(nn.Module, copied(m))
        return m.to_conv() if isinstance(m, Transport) else m

    replace(model, fixed)


def _fold_batch_norms(model: nn.Module, x: Tensor) -> None:
    """Folds every batch norm whose input is, in a run on `x`, the very tensor that one convolution gave."""
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    follows: dict[nn.Module, nn.Module] = {}
    calls: Counter[nn.Module] = Counter()
    readers: Counter[nn.Module] = Counter()

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        calls[module] += 1
        for arg in args:
            producer, _ = made.get(id(arg), (None, None))
            is_norm = isinstance(module, nn.BatchNorm2d)  # timm's have an activation inside
            if producer is not None and (is_norm or not list(module.children())):
                readers[producer] += 1
                if is_norm:
                    follows[module] = producer

    def after(module: nn.Module, args: tuple[Any, ...], kwargs: Any, output: Any) -> None:
        if isinstance(module, nn.Conv2d):
            made[id(output)] = (module, output)  # the tensor is kept, so that its id is not given again

    with listen(model.modules(), before=before, after=after):
        model(x.clone())
    new: dict[nn.Module, nn.Module] = {}
    whole = [m for m in model.modules() if isinstance(m, GlobalLayer) and fused(m) is not m]  # one kernel as they are
    inside = {part for layer in whole for part in layer.modules()}
    for norm, conv in ((n, c) for n, c in follows.items() if n not in inside):
        once = calls[norm] == calls[conv] == readers[conv] == 1 and not is_parametrized(conv)
        if once and type(norm) in (nn.BatchNorm2d, BatchNormAct2d) and norm.running_mean is not None:
            _fold(conv, norm)
            new[norm] = norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity()
    replace(model, lambda module: new.get(module, module))


def _fold(conv: Any, norm: Any) -> None:
    conv.weight, conv.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    conv.requires_grad_(False)


def _activate_in_place(model: nn.Module, x: Tensor) -> None:
    """Lets activations overwrite an input that nothing uses after them: a map less to allocate for each."""
    candidates = {module for module in model.modules() if vars(module).get("inplace") is False}
    for module in last_readers(model, x.clone(), candidates):
        vars(module)["inplace"] = True


def _faster_format(model: nn.Module, x: Tensor) -> torch.memory_format:
    if x.ndim != 4:
        return torch.contiguous_format
    copies = {f: copy.deepcopy(model).to(memory_format=f) for f in FORMATS}
    times = measure({str(f): partial(m, x) for f, m in copies.items()}, rounds=9, max_seconds=2.0)
    return min(FORMATS, key=lambda f: times[str(f)].p20)


def _kept_if_equal(
    model: nn.Module, change: Callable[[nn.Module, Tensor], object], x: Tensor, expected: list[Tensor]
) -> nn.Module:
    """The model after a change, or as it was if its outputs are then others or it does not run."""
    changed = copy.deepcopy(model)
    try:
        change(changed, x)
        found = tensors_in(changed(x.clone()))
    except Exception:  # any model may come here, and it works as it is
        return model
    same = len(found) == len(expected) and all(map(_is_equal, found, expected))
    return changed if same else model


def _is_equal(q: Tensor, expected: Tensor) -> bool:
    if q.shape != expected.shape or q.dtype != expected.dtype:
        return False
    if expected.numel() == 0 or not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(q, expected)
    q, expected = q.to_dense(), expected.to_dense()
    return bool((q - expected).abs().max() <= TOLERANCE * expected.abs().max().clamp_min(1e-12))
