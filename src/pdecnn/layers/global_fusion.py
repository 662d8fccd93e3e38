"""Which Global layers the operators `pdecnn::global_layer` and `pdecnn::global_training` stand for, and calling them.

`match` is the only place that decides. A layer is covered if the modules and methods that it has now, whatever was
done to it since it was built, compute what the operators compute: depth-wise velocities, depth-wise or constant
diffusivities, the input or nothing as source, batch norms, and nobody who listens to the parts. All else runs module
by module, with the same result. What a kernel can do with given tensors (their type, strides, sizes) is no question
here: the operators themselves take another way where their kernel does not apply.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from pdecnn import kernels as kernels  # registers the operators
from pdecnn.kernels.global_layer.arguments import SIDES, Steps
from pdecnn.kernels.library import in_transform
from pdecnn.kernels.registry import is_native, triton_missing
from pdecnn.layers.coefficients import LearnedPair, NumberPair, Pair
from pdecnn.layers.step_norm import StepNorm, normed
from pdecnn.reference.advection_diffusion import MAX_STEPS, check_steps
from pdecnn.shared.modules import affine

if TYPE_CHECKING:
    from pdecnn.layers.global_layer import GlobalLayer

_OPS = torch.ops.pdecnn
_IS_NATIVE = is_native("global_layer")
_HAS_TRITON = triton_missing() is None
_ACTS = {nn.Identity: "identity", nn.ReLU: "relu", nn.ReLU6: "relu6", nn.Tanh: "tanh", nn.Hardtanh: "hardtanh"}
_TENSORS = (Tensor, nn.Parameter)  # a subclass may have its own idea of what operators do
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = [getattr(torch_module, f"_global{name}") for name in _HOOKS]
_METHODS = ("__call__", "forward", "first_guess", "coefficients", "solve", "spacings", "_run", "_prepare")
_known: dict[str, Any] = {}


def stand_for(cls: type) -> None:
    """Names the class whose methods the operators stand for; where one is overridden, it is called."""
    _known.update({name: getattr(cls, name) for name in _METHODS})


class Arguments(NamedTuple):
    """What the operators take of a layer: the parts whose numbers they use, and the options."""

    convs: list[nn.Conv2d]  # of u, v and, where they are learned, D_x, D_y
    norms: list[nn.BatchNorm2d]
    norm: nn.BatchNorm2d
    steps: Steps
    output_act: str
    residual: bool  # whether the operator adds the input: in evaluation, where no path is dropped

    def fold(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight and bias of the stencils and scale and shift of the output, with the norms of evaluation folded in."""
        scales, shifts = _affine([*self.norms, self.norm])
        scale, shift, bias = scales[:-1], shifts[:-1], _biases(self.convs)
        weight = _stencils(self.convs) * scale[:, :, None, None]
        return weight, shift if bias is None else torch.addcmul(shift, scale, bias), scales[-1], shifts[-1]

    def infer(self, h: Tensor, x: Tensor) -> Tensor:
        """The layer's output in evaluation."""
        return _OPS.global_layer(h, x, *self.fold(), self.residual, self.output_act, *self.steps)  # type: ignore[no-any-return]

    def train(self, h: Tensor, x: Tensor, act: nn.Module) -> Tensor:
        """The layer's output in training mode, before a residual; the norms count their statistics."""
        other = None if x is h or not (self.steps.has_source or self.steps.previous_is_input) else x
        weight, gamma, beta, eps = _stencils(self.convs), *_scales(self.norms, h)
        out, mean, var = _OPS.global_training(h, other, weight, _biases(self.convs), gamma, beta, eps, *self.steps)
        _count(self.norms, mean, var, h)
        return norm_act(self.norm, act, out, self.steps.K)


def match(layer: "GlobalLayer", h: Tensor, x: Tensor, K: int) -> Arguments | None:
    """What the operators take if they compute what `layer` does now with the first guess `h`, the input and K steps.

    In evaluation that needs norms that are all in evaluation and no gradients; in training, norms that are all in
    training.
    """
    if not _runs_now(h) or type(x) not in _TENSORS or x.dtype != h.dtype:
        return None
    found = covered(layer, K)
    if found is None or _weight(found.convs[0]).dtype != h.dtype:
        return None
    training = found.norm.training
    whole = _trains_now(h) or _trains_whole(h, _weight(found.convs[0]))
    ready = whole if training else not torch.is_grad_enabled()
    return found if ready and all(norm.training == training for norm in found.norms) else None


def covered(layer: "GlobalLayer", K: int | None = None) -> Arguments | None:
    """The part of `match` that is about the layer; it says nothing of hooks on the layer itself and on its `init`."""
    cls, own, parts = type(layer), vars(layer), layer._modules
    if any(getattr(cls, name) is not method or name in own for name, method in _known.items()):
        return None
    if own["dilation"] > 1 or own["velocity_bound"] or own["upwind"] or own["source_each_step"]:
        return None
    source, diffusion = layer.source, parts["diffusion"]
    if source is not None and not (type(source) is nn.Identity and _plain(source)):
        return None
    pairs, D = [parts["velocity"], diffusion], (0.0, 0.0)
    if type(diffusion) is NumberPair and _plain(diffusion):
        pairs, D = pairs[:1], (diffusion.x, diffusion.y)
    K = own.get("K") if K is None else K
    numbers = (*D, own.get("dt"), own.get("dx"), own.get("dy"))  # tensors among them may be learned
    if not (type(K) is int and 1 <= K <= MAX_STEPS and all(type(q) in (float, int) for q in numbers) and min(D) >= 0):
        return None
    maps, norm = _maps(pairs, own["channels"]), _after(parts["norm"], K)
    output_act = _act(parts["act"])
    if maps is None or output_act is None or not _is_norm(norm, _weight(maps.convs[0]).dtype):
        return None
    drops = cast(nn.Module, parts["drop_path"])
    keeps = _plain(drops) and (type(drops) is nn.Identity or (type(drops) is DropPath and not drops.training))
    D_x, D_y, dt, dx, dy = (float(cast(float, q)) for q in numbers)
    roles = (source is not None, own["h_prev"] == "input")
    steps = Steps(D_x, D_y, K, dt, dx, dy, own["boundary"], own["flow_sign"], *roles, maps.act)
    return Arguments(maps.convs, maps.norms, cast(nn.BatchNorm2d, norm), steps, output_act, own["residual"] and keeps)


def coefficient_pairs(velocity: nn.Module, diffusion: nn.Module, h: Tensor) -> tuple[Pair, Pair]:
    """`(u, v)` and `(D_x, D_y)`; in training by one operator where it stands for both, or for one."""
    for pairs in ((velocity, diffusion), (velocity,), (diffusion,)) if _runs_now(h) and _trains_now(h) else ():
        found = _maps(pairs, h.shape[1])
        if found is None or _weight(found.convs[0]).dtype != h.dtype or not all(norm.training for norm in found.norms):
            continue
        weight, bias = _stencils(found.convs), _biases(found.convs)
        maps, mean, var = _OPS.depthwise_norm(h, weight, bias, *_scales(found.norms, h), found.act)
        _count(found.norms, mean, var, h)
        if len(pairs) == 2:
            return (maps[0], maps[1]), (maps[2], maps[3])
        return (tuple(maps), diffusion(h)) if pairs == (velocity,) else (velocity(h), tuple(maps))
    return velocity(h), diffusion(h)


def norm_act(norm: nn.Module, act: nn.Module, h: Tensor, K: int) -> Tensor:
    """`act(norm(h))` of the state after K steps, in training by one operator where it stands for both.

    Channels side by side are left to torch.
    """
    ready = _runs_now(h) and _trains_now(h) and h.is_contiguous() and norm.training
    one = _after(norm, K) if ready else None
    if not _is_norm(one, h.dtype):
        return cast(Tensor, act(normed(norm, h, K)))
    name = _act(act)
    inside = name if name not in (None, "tanh") else "identity"
    norms = [cast(nn.BatchNorm2d, one)]
    (out,), mean, var = _OPS.depthwise_norm(h, None, None, *_scales(norms, h), inside)
    _count(norms, mean, var, h)
    return out if inside == name else cast(Tensor, act(out))


class FusedGlobalLayer(nn.Module):
    """What a `GlobalLayer` computes in evaluation, by `pdecnn::global_layer`.

    It has no parameters of its own but buffers with the norms folded in, so it neither trains nor follows later changes
    of the layer.

    Args:
        layer: A layer in evaluation that `match` covers; it is left as it is, and its `init` is shared.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, layer: "GlobalLayer") -> None:
        super().__init__()
        found = covered(layer) if is_silent(layer) else None
        if found is None or any(norm.training or norm.running_mean is None for norm in (found.norm, *found.norms)):
            raise ValueError(f"FusedGlobalLayer: the kernel does not cover {layer!r}. Keep the GlobalLayer.")
        self.channels, self.init, self.steps = layer.channels, layer.init, found.steps
        self.residual, self.output_act = layer.residual, found.output_act
        weight, bias, scale, shift = found.fold()
        self.served: range | None = None  # the K that there are rows of scale and shift for
        if isinstance(layer.norm, StepNorm):
            self.served = range(layer.norm.least, layer.norm.most + 1)
            folded = [cast(Arguments, covered(layer, K)).fold()[2:] for K in self.served]
            scale, shift = (torch.stack(rows) for rows in zip(*folded, strict=True))
        self.weight_shape = weight.shape
        # flat, for `.to(memory_format=...)` would reorder a weight of four dimensions
        for name, value in (("weight", weight.flatten()), ("bias", bias), ("scale", scale), ("shift", shift)):
            self.register_buffer(name, value.detach().contiguous())

    def forward(self, x: Tensor, *context: Tensor, K: int | None = None) -> Tensor:
        """The layer's output; `context` is handed to `init` after `x`. K steps, if given, instead of the layer's."""
        init = cast(nn.Module, self._modules["init"])  # with the buffers below, faster than attributes at batch 1
        h = x if type(init) is nn.Identity and not context and _plain(init) else init(x, *context)
        check_guess("FusedGlobalLayer", h, x, self.channels)
        x = x if x is h or x.shape == h.shape else h
        if (h.requires_grad or x.requires_grad) and torch.is_grad_enabled():
            raise RuntimeError(
                "FusedGlobalLayer: the whole-layer kernel is for inference and has no gradient. "
                "Use the GlobalLayer for training, or run this model under torch.no_grad()."
            )
        held, steps = self._buffers, self.steps
        weight = cast(Tensor, held["weight"]).view(self.weight_shape)
        h, x = (h, x) if h.dtype == x.dtype == weight.dtype else (h.to(weight.dtype), x.to(weight.dtype))
        if K is not None:
            self._check(K)
            steps = steps._replace(K=K)
        scale, shift = cast(Tensor, held["scale"]), cast(Tensor, held["shift"])
        if self.served is not None:
            row = steps.K - self.served.start
            scale, shift = scale[row], shift[row]
        parameters = (weight, held["bias"], scale, shift)
        out: Tensor = _OPS.global_layer.default(h, x, *parameters, self.residual, self.output_act, *steps)
        return out

    def set_steps(self, K: int) -> None:
        """Changes the number of time steps."""
        self._check(K)
        self.steps = self.steps._replace(K=K)

    @property
    def K(self) -> int:  # noqa: N802  (as the layer has it)
        """The number of time steps."""
        return self.steps.K

    def _check(self, K: int) -> None:
        check_steps("FusedGlobalLayer", K)
        if self.served is not None and K not in self.served:
            served = f"{self.served.start} to {self.served.stop - 1}"
            raise ValueError(f"FusedGlobalLayer: this net was trained for K from {served}, got K={K}.")

    def extra_repr(self) -> str:
        """Channels and steps."""
        return f"{self.channels}, K={self.steps.K}"


def fused(layer: "GlobalLayer") -> "FusedGlobalLayer | GlobalLayer":
    """The layer in evaluation as one operator, or itself where it is not covered."""
    try:
        return FusedGlobalLayer(layer)
    except ValueError:
        return layer


def check_guess(name: str, h: Tensor, x: Tensor, channels: int) -> None:
    """A ValueError unless the first guess `h` of the input `x` has the channels of the layer."""
    if h.ndim != 4 or h.shape[1] != channels:
        raise ValueError(
            f"{name}: expected a first guess of shape (N, {channels}, H, W), got {tuple(h.shape)} from an input of "
            f"shape {tuple(x.shape)}."
        )


class _Maps(NamedTuple):
    """The parts of some pairs, whose members are all `act(norm(conv(h)))`."""

    convs: list[nn.Conv2d]
    norms: list[nn.BatchNorm2d]
    act: str


def _maps(pairs: Sequence[nn.Module | None], C: int) -> _Maps | None:
    """The parts of the pairs if all are depth-wise, of one activation and one size of stencils; else None."""
    convs: list[Any] = []
    norms: list[Any] = []
    acts = set()
    for pair in pairs:
        if type(pair) is not LearnedPair or pair.gated or not _plain(pair):
            return None
        parts = pair._modules
        convs += parts["op_x"], parts["op_y"]
        norms += parts["norm_x"], parts["norm_y"]
        acts.add(_act(parts["act"]))
    if len(acts) > 1 or None in acts or not all(type(conv) is nn.Conv2d for conv in convs):
        return None
    weight = convs[0]._parameters.get("weight")
    if weight is None:
        return None
    dtype, k = weight.dtype, weight.shape[-1]
    if k % 2 == 0 or not all(_is_stencil(conv, C, k, dtype) for conv in convs):
        return None
    return _Maps(convs, norms, cast(str, acts.pop())) if all(_is_norm(norm, dtype) for norm in norms) else None


def _runs_now(h: Tensor) -> bool:
    """Whether the operators may take `h`, a plain map: torch takes nothing apart, and nobody listens everywhere."""
    return (
        type(h) in _TENSORS
        and h.dtype is torch.float32
        and h.device.type in ("cpu", "cuda")
        and h.layout is torch.strided
        and not _is_taken_apart()
        and not torch.is_autocast_enabled(h.device.type)
        and not any(_GLOBAL_HOOKS)
    )


def _is_taken_apart() -> bool:
    """Whether torch exports, traces or transforms the layer. Its compiler, from torch 2.14 on, keeps the operators."""
    if torch.compiler.is_compiling():
        return torch.compiler.is_exporting()
    return in_transform() or torch._C._get_tracing_state() is not None


def _trains_now(h: Tensor) -> bool:
    """Whether batch statistics are to be had and there are kernels that make the operators pay in training."""
    return h.numel() > h.shape[1] > 0 and h.device.type == "cpu" and _IS_NATIVE


def _trains_whole(h: Tensor, weight: Tensor) -> bool:
    """Whether there is a kernel for whole layers only, and it takes these stencils: on CUDA, in Triton."""
    return h.device.type == "cuda" and _HAS_TRITON and h.numel() > h.shape[1] > 0 and weight.shape[-1] in SIDES


def is_silent(module: nn.Module) -> bool:
    """Whether no hook listens to the module."""
    return not (
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def _plain(module: nn.Module) -> bool:
    """Whether the module is what its class says: no hook, and nothing that the instance has instead."""
    own = vars(module)
    instead = "forward" in own or "_conv_forward" in own or "weight" in own or "bias" in own
    return is_silent(module) and not instead


def _act(act: nn.Module | None) -> str | None:
    """The activation's name in the operators."""
    name = _ACTS.get(type(act))
    if name is None or act is None or not _plain(act):
        return None
    own = vars(act)
    return None if name == "hardtanh" and (own["min_val"], own["max_val"]) != (-1.0, 1.0) else name


def _is_stencil(conv: nn.Conv2d, C: int, k: int, dtype: torch.dtype) -> bool:
    """Whether it correlates every channel with its own stencil of side k, with zeros beyond the border."""
    own, parameters = vars(conv), conv._parameters
    weight, bias = parameters.get("weight"), parameters.get("bias")
    return (
        weight is not None
        and weight.shape == (C, 1, k, k)
        and weight.dtype == dtype
        and (bias is None or bias.dtype == dtype)
        and own["groups"] == C
        and own["padding"] == (k // 2, k // 2)
        and own["stride"] == (1, 1)
        and own["dilation"] == (1, 1)
        and own["padding_mode"] == "zeros"
        and _plain(conv)
    )


def _after(norm: nn.Module | None, K: int) -> nn.Module | None:
    """The norm of the state after K steps, where there is one for each K."""
    return norm.at(K) if type(norm) is StepNorm and _plain(norm) else norm


def _is_norm(norm: nn.Module | None, dtype: torch.dtype) -> bool:
    """Whether it is a batch norm (not a subclass) of this type that keeps, in evaluation, a mean and a variance."""
    if type(norm) is not nn.BatchNorm2d or not _plain(norm):
        return False
    mean, var = norm._buffers["running_mean"], norm._buffers["running_var"]
    numbers = (norm._parameters["weight"], norm._parameters["bias"], mean, var)
    has_scale = norm.training or (mean is not None and var is not None)
    return has_scale and all(q is None or q.dtype == dtype for q in numbers)


def _weight(conv: nn.Conv2d) -> Tensor:
    return cast(Tensor, conv._parameters["weight"])


def _stencils(convs: Sequence[nn.Conv2d]) -> Tensor:
    return torch.stack([_weight(conv) for conv in convs]).squeeze(2)


def _biases(convs: Sequence[nn.Conv2d]) -> Tensor | None:
    biases = [conv._parameters["bias"] for conv in convs]
    if all(bias is None for bias in biases):
        return None
    zero = _weight(convs[0]).new_zeros(len(_weight(convs[0])))
    return torch.stack([zero if bias is None else bias for bias in biases])


def _scales(norms: Sequence[nn.BatchNorm2d], like: Tensor) -> tuple[Tensor, Tensor, list[float]]:
    """Scales, shifts and eps of all norms of maps with the channels of `like`."""
    C = like.shape[1]
    gamma, beta = ([norm._parameters[name] for norm in norms] for name in ("weight", "bias"))
    return (
        torch.stack([like.new_ones(C) if q is None else q for q in gamma]),
        torch.stack([like.new_zeros(C) if q is None else q for q in beta]),
        [norm.eps for norm in norms],
    )


def _affine(norms: Sequence[nn.BatchNorm2d]) -> tuple[Tensor, Tensor]:
    """What the norms are in evaluation: `norm(h) = scale * h + shift`, `(norms, C)` each."""
    mean = torch.stack([cast(Tensor, norm._buffers["running_mean"]) for norm in norms])
    var = torch.stack([cast(Tensor, norm._buffers["running_var"]) for norm in norms])
    gamma, beta, eps = _scales(norms, mean)
    return affine(gamma, beta, mean, var, eps[0] if len(set(eps)) == 1 else var.new_tensor(eps)[:, None])


@torch.no_grad()
def _count(norms: Sequence[nn.BatchNorm2d], means: Tensor, variances: Tensor, h: Tensor) -> None:
    """Running statistics as `nn.BatchNorm2d` keeps them: a moving average, or the average of all batches."""
    count = h.numel() // h.shape[1]
    for norm, mean, var in zip(norms, means, variances * (count / (count - 1)), strict=True):
        if not norm.track_running_stats:
            continue
        momentum = norm.momentum
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        weight: Any = momentum or 0.0
        if momentum is None and norm.num_batches_tracked is not None:
            weight = norm.num_batches_tracked.to(mean.dtype).reciprocal()
        for running, batch in ((norm.running_mean, mean), (norm.running_var, var)):
            if running is not None:
                running.lerp_(batch, weight)
