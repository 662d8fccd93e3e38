"""Keeping what depends on the weights and the image size alone, while the weights stay as they are."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class SpectrumCache:
    """The last spectrum of a parameter, valid until the parameter changes in any way.

    A parameter is recognised by its storage and its version, which every in-place change counts up: `load_state_dict`,
    an optimiser's step, `.to()`. Only used without gradients; `torch.compile` and `torch.export` never see it.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._value: Tensor | None = None

    def get(self, parameter: Tensor, key: tuple[Any, ...], compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, or what it gave the last time if nothing it depends on has changed."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or parameter.is_inference():
            return compute()
        now = (
            parameter.data_ptr(),
            parameter._version,
            parameter.dtype,
            parameter.device,
            tuple(parameter.shape),
            *key,
        )
        if now != self._key or self._value is None:
            with torch.inference_mode(False), torch.no_grad():
                self._value = compute()
            self._key = now
        return self._value

    def clear(self) -> None:
        """Forgets."""
        self._key = self._value = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "SpectrumCache":
        return SpectrumCache()

    def __getstate__(self) -> dict[str, Any]:
        return {"_key": None, "_value": None}
