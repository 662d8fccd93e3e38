"""A plain Global layer in inference: its norms folded, everything after the first guess in one kernel."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from pdecnn import kernels as kernels  # registers the operator
from pdecnn.layers.coefficients import LearnedPair, NumberPair

if TYPE_CHECKING:
    from pdecnn.layers.global_layer import GlobalLayer

_OPERATOR = torch.ops.pdecnn.global_layer.default
DEVICES = ("cpu", "cuda")
_ACTS = {nn.ReLU: "relu", nn.ReLU6: "relu6"}


class Folded(NamedTuple):
    """A layer's weights `(maps, C, k, k)` and biases `(maps, C)`, its output scale and shift, and its options."""

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor
    options: tuple[Any, ...]


def fold_norm(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """`(scale, shift)` of a batch norm in evaluation: `norm(h) = scale * h + shift`."""
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:
        raise ValueError("fold_norm: the batch norm keeps no running statistics, so it has no fixed scale and shift.")
    scale = (var + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight
    shift = -mean * scale
    if norm.bias is not None:
        shift = shift + norm.bias
    return scale, shift


def _folded_taps(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    scale, shift = fold_norm(norm)
    bias = shift if conv.bias is None else shift + scale * conv.bias
    return conv.weight[:, 0] * scale[:, None, None], bias


class FusedGlobalLayer(nn.Module):
    """What a `GlobalLayer` computes in evaluation, by `pdecnn::global_layer`.

    Made from a layer whose `is_plain` is true; it has no parameters of its own but buffers with the norms folded in, so
    it neither trains nor follows later changes of the layer.

    Args:
        layer: The layer, which is left as it is; its `init` is shared.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, layer: "GlobalLayer") -> None:
        super().__init__()
        if not layer.is_plain:
            raise ValueError(f"FusedGlobalLayer: the kernel does not cover {layer!r}. Keep the GlobalLayer.")
        self.channels = layer.channels
        self.init = layer.init
        self.residual = layer.residual
        weight, bias, scale, shift, self.options = fold(layer)
        self.weight_shape = weight.shape
        # flat, for `.to(memory_format=...)` would reorder a weight of four dimensions
        for name, value in (("weight", weight.flatten()), ("bias", bias), ("scale", scale), ("shift", shift)):
            self.register_buffer(name, value.detach().contiguous())

    def forward(self, x: Tensor, *context: Tensor) -> Tensor:
        """The layer's output; `context` is handed to `init` after `x`."""
        init = cast(nn.Module, self._modules["init"])  # with the buffers below, faster than attributes at batch 1
        h = x if type(init) is nn.Identity and not context else init(x, *context)
        if h.ndim != 4 or h.shape[1] != self.channels:
            raise ValueError(
                f"FusedGlobalLayer: expected a first guess of shape (N, {self.channels}, H, W), got {tuple(h.shape)} "
                f"from an input of shape {tuple(x.shape)}."
            )
        x = x if x is h or x.shape == h.shape else h
        if (h.requires_grad or x.requires_grad) and torch.is_grad_enabled():
            raise RuntimeError(
                "FusedGlobalLayer: the whole-layer kernel is for inference and has no gradient. "
                "Use the GlobalLayer for training, or run this model under torch.no_grad()."
            )
        held = self._buffers
        weight = cast(Tensor, held["weight"]).view(self.weight_shape)
        out: Tensor = _OPERATOR(h, x, weight, held["bias"], held["scale"], held["shift"], *self.options)
        return out + x if self.residual else out

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps."""
        if isinstance(K, bool) or not isinstance(K, int) or K < 1:
            raise ValueError(f"FusedGlobalLayer: K (number of time steps) must be an int of at least 1, got K={K!r}.")
        self.options = (*self.options[:2], K, *self.options[3:])

    def extra_repr(self) -> str:
        """Channels and steps."""
        return f"{self.channels}, K={self.options[2]}"


def fold(layer: "GlobalLayer") -> Folded:
    """What the operator needs of a plain layer, with the norms folded in."""
    pairs = [layer.velocity] if isinstance(layer.diffusion, NumberPair) else [layer.velocity, layer.diffusion]
    taps = [
        _folded_taps(cast(nn.Conv2d, op), cast(nn.BatchNorm2d, norm))
        for pair in pairs
        for op, norm in ((pair.op_x, pair.norm_x), (pair.op_y, pair.norm_y))
    ]
    D = (layer.diffusion.x, layer.diffusion.y) if isinstance(layer.diffusion, NumberPair) else (0.0, 0.0)
    velocity = cast(LearnedPair, layer.velocity)
    dx, dy = layer.spacings
    options = (
        *(float(d) for d in D),
        layer.K,
        layer.dt,
        dx,
        dy,
        layer.boundary,
        layer.flow_sign,
        layer.h_prev == "input",
        _ACTS[type(velocity.act)],
        _ACTS[type(layer.act)],
    )
    scale, shift = fold_norm(cast(nn.BatchNorm2d, layer.norm))
    return Folded(torch.stack([w for w, _ in taps]), torch.stack([b for _, b in taps]), scale, shift, options)


def run_fused(h: Tensor, x: Tensor, folded: Folded) -> Tensor:
    """Calls the operator."""
    *tensors, options = folded
    return cast(Tensor, _OPERATOR(h, x, *tensors, *options))


def can_fuse(layer: "GlobalLayer", h: Tensor) -> bool:
    """Whether `layer` may be computed by the one kernel now: in inference, plain, in float32, and nobody listening.

    Hooks on the parts of the layer (a profiler's, say) are served by running the parts; so are compiling, and norms
    that are left in training mode inside a layer in evaluation, to renew their statistics.
    """
    return (
        not layer.training
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and layer.is_plain
        and h.dtype == torch.float32
        and h.device.type in DEVICES
        and not torch.is_autocast_enabled(h.device.type)
        and not any(m.training or m._forward_hooks or m._forward_pre_hooks for m in _parts(layer))
        and not (torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks)
    )


def _parts(layer: "GlobalLayer") -> Iterator[nn.Module]:
    """The modules that the kernel stands in for."""
    for part in (layer.velocity, layer.diffusion, layer.source, layer.norm, layer.act):
        if part is not None:
            yield from part.modules()
