"""8-bit ONNX: convolutions and matrix products with weights quantised per channel, everything else in float.

The steps of a Global layer and the transforms of a spectral filter lose accuracy in 8 bits and gain no speed, so
they stay in float; only `Conv` and `Gemm` nodes are quantised (QDQ, static, calibrated on given inputs).
"""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from pdecnn.shared.extras import require

QUANTISED = ("Conv", "Gemm")


def calibration_batches(
    calibration: Tensor | Iterable[Tensor | Sequence[Tensor]], inputs: Sequence[Tensor]
) -> list[tuple[Tensor, ...]]:
    """The batches as tuples, after a check that each is like the example `inputs`; one Tensor is one batch."""
    given = [calibration] if isinstance(calibration, Tensor) else calibration
    batches = [(batch,) if isinstance(batch, Tensor) else _without_labels(batch, len(inputs)) for batch in given]
    wanted = [_kind(x) for x in inputs]
    if not batches:
        raise ValueError(f"export: int8 needs calibration batches of {len(wanted)} input(s) each, got 0 batches.")
    for i, batch in enumerate(batches):
        if (found := [_kind(x) for x in batch]) != wanted:
            raise ValueError(
                f"export: int8 needs calibration batches like the example inputs, {', '.join(wanted)}; batch {i} holds "
                f"{', '.join(found)}."
            )
        if not all(x.isfinite().all() for x in batch):
            raise ValueError(f"export: int8 needs calibration batches of finite values; batch {i} holds others.")
    return batches


def _without_labels(batch: Sequence[Any], count: int) -> tuple[Any, ...]:
    """The inputs of a batch `(x, y)` of a DataLoader: what is more, and one number per image, are labels."""
    extra = [y for y in batch[count:] if not (isinstance(y, Tensor) and (y.ndim > 1 or y.is_floating_point()))]
    return tuple(batch[:count]) if len(extra) == len(batch) - count else tuple(batch)


def _kind(x: Any) -> str:
    """Shape, with the batch left open, and dtype: `(N, 3, 32, 32) float32`."""
    if not isinstance(x, Tensor) or x.ndim == 0:
        return type(x).__name__
    return f"({', '.join(['N', *map(str, x.shape[1:])])}) {str(x.dtype).removeprefix('torch.')}"


def quantise(proto: Any, batches: Sequence[Sequence[Tensor]]) -> Any:
    """The model `proto` with 8-bit convolutions and fully connected layers.

    Args:
        proto: An `onnx.ModelProto` of portable operators.
        batches: Of inputs as the model will see them, from `calibration_batches`; a few hundred training images do.
    """
    onnx = require("onnx", "export")
    quantization = require("onnxruntime.quantization", "export")
    names = [item.name for item in proto.graph.input]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.batches = iter(batches)

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self.batches, None)
            return None if batch is None else {n: x.detach().cpu().numpy() for n, x in zip(names, batch, strict=True)}

    with tempfile.TemporaryDirectory() as folder:
        source, prepared, target = (Path(folder) / name for name in ("float.onnx", "prepared.onnx", "int8.onnx"))
        onnx.save(proto, source)
        # with skip_symbolic_shape, sizes come from ONNX's own inference; graph optimisation merges Conv and its ReLU
        quantization.quant_pre_process(source, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            target,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=list(QUANTISED),
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return onnx.load(target)
