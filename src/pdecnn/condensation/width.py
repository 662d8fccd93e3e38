"""Narrower networks: channels are taken out of every layer by Torch-Pruning, which knows what hangs together."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.layers.transport import Transport
from pdecnn.shared.extras import require
from pdecnn.shared.modules import eval_mode, listen, tensors_in

ROUND = 4  # widths are multiples of it, where a layer is wider


def narrow(model: nn.Module, inputs: tuple[Any, ...], width: float) -> nn.Module:
    """A copy of `model` whose layers have `width` of their channels: those of the largest norm, by groups.

    Which channels stay depends on the weights, how many does not: a fresh model becomes one of the same shapes.

    Args:
        model: It is not changed. What it returns keeps its shape.
        inputs: Its arguments.
        width: The share of channels that stay, above 0 and at most 1.

    Example:
        >>> import timm
        >>> small = narrow(timm.create_model("cifar_resnet32"), (torch.zeros(1, 3, 32, 32),), 0.5)
        >>> [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)][:2], small.num_features
        ([8, 8], 32)
    """
    check_width(width, "narrow")
    small = copy.deepcopy(model)
    if width == 1:
        return small
    if any(p.is_meta for p in model.parameters()):
        raise NotImplementedError(
            "width: what stays is decided by numbers, of which a model on the meta device has none."
        )
    tp = require("torch_pruning", "prune")
    with eval_mode(small), torch.enable_grad():
        before, last = _last_layers(small, inputs)
        for p in small.parameters():
            p.requires_grad_(p.is_floating_point())
        try:
            tp.pruner.BasePruner(
                small,
                inputs,
                importance=tp.importance.GroupMagnitudeImportance(p=2),
                pruning_ratio=1 - width,
                round_to=ROUND,
                ignored_layers=last,
                customized_pruners={Transport: _transport_pruner(tp)},
                root_module_types=[nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear],
            ).step()
            _tell(small)
            after = [tuple(t.shape) for t in tensors_in(small(*inputs))]
        except Exception as error:
            raise ValueError(f"width: Torch-Pruning cannot narrow {type(model).__name__}: {error}.") from error
    if after != before:
        raise ValueError(
            f"width: Torch-Pruning changes what {type(model).__name__} returns, from {before} to {after}. Plan without "
            "width=."
        )
    for name, p in model.named_parameters():
        small.get_parameter(name).requires_grad_(p.requires_grad)
    return small


def check_width(width: Any, who: str, name: str = "width") -> None:
    """A ValueError unless it is a share."""
    if isinstance(width, bool) or not isinstance(width, (int, float)) or not 0 < width <= 1:
        raise ValueError(f"{who}: {name} is the share of channels that stay, above 0 and at most 1; got {width!r:.80}.")


def _last_layers(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[list[tuple[int, ...]], list[nn.Module]]:
    """The shapes of what a model returns, and the layers whose channels are those of an answer."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    calls: list[tuple[nn.Module, Tensor]] = []

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            calls.append((module, output))

    with torch.no_grad(), listen([m for m in model.modules() if isinstance(m, kinds)], after=note):
        answers = tensors_in(model(*inputs))
    channels = {a.shape[1] for a in answers if a.ndim > 1}
    same = [module for module, out in calls if any(out is a or out.data_ptr() == a.data_ptr() for a in answers)]
    late = [m for m, out in reversed(calls) if out.ndim > 1 and out.shape[1] in channels][: len(answers)]
    return [tuple(a.shape) for a in answers], list({*same, *late})


def _transport_pruner(tp: Any) -> Any:
    """Tells Torch-Pruning that a transport layer has as many channels behind it as before it."""

    class Pruner(tp.pruner.function.BasePruningFunc):  # type: ignore[misc, name-defined]
        def prune_out_channels(self, layer: Transport, idxs: Sequence[int]) -> nn.Module:
            if layer.share != 1:
                raise ValueError("channels that share coefficients go together")
            gone = set(idxs)
            stay = [i for i in range(layer.channels) if i not in gone]
            for name in ("velocity", "diffusion"):
                old = getattr(layer, name)
                setattr(layer, name, nn.Parameter(old.detach()[:, stay], requires_grad=old.requires_grad))
            layer.channels = len(stay)
            return layer

        prune_in_channels = prune_out_channels

        def get_out_channels(self, layer: Transport) -> int:
            return layer.channels

        get_in_channels = get_out_channels

    return Pruner()


def _tell(small: nn.Module) -> None:
    """Gives modules of ours and of timm the numbers of channels that they keep beside their weights."""
    for module in small.modules():
        found = getattr(getattr(module, "norm", None), "num_features", None)
        if isinstance(getattr(module, "channels", None), int) and isinstance(found, int):
            module.channels = found  # type: ignore[assignment]
    head = small.get_classifier() if hasattr(small, "get_classifier") else None  # type: ignore[operator]
    if isinstance(head, nn.Linear) and isinstance(getattr(small, "num_features", None), int):
        small.num_features = head.in_features  # type: ignore[assignment]
