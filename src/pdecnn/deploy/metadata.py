"""What an ONNX file says of itself: the classes, how images become inputs, and what wrote it."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from torch import Tensor, nn


def metadata_of(model: nn.Module, inputs: Sequence[Tensor], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The entries of a file: what the model knows, and `more`, which comes first.

    `mean` and `std` are known of models of timm; `input` of a checkpoint's config is taken apart into `input_size`,
    `mean` and `std`.
    """
    cfg: Any = getattr(model, "pretrained_cfg", None)
    cfg = cfg if isinstance(cfg, dict) else {}
    given = dict(more or {})
    saved = given.pop("input", None) or {}
    known = {
        "pdecnn_version": version("pdecnn"),
        "model": type(model).__name__,
        "input_size": list(inputs[0].shape[1:]),
        "mean": saved.get("mean") or cfg.get("mean"),
        "std": saved.get("std") or cfg.get("std"),
        "classes": given.pop("classes", None) or cfg.get("label_names"),
    }
    return {key: value for key, value in {**known, **given}.items() if value is not None}


def write_metadata(proto: Any, values: Mapping[str, Any]) -> None:
    """Puts the entries into a file: text as it is, everything else as JSON."""
    del proto.metadata_props[:]
    for key, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=list)
        proto.metadata_props.add(key=key, value=text)


def read_metadata(session: Any) -> dict[str, Any]:
    """The entries of the file that an `onnxruntime.InferenceSession` runs, as they were before they were written."""
    found: dict[str, str] = session.get_modelmeta().custom_metadata_map
    return {key: _value(text) for key, text in found.items()}


def _value(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (list, dict)) else text
