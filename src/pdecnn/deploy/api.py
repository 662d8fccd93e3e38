"""`pdecnn.export`: a model in, a file for an edge runtime out, compared with the model before it gets its name."""

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import measure
from pdecnn.deploy.check import (
    TOLERANCE,
    Agreement,
    ExportError,
    Runner,
    answers,
    compare,
    first_difference,
    onnx_runner,
)
from pdecnn.deploy.flat import flatten
from pdecnn.deploy.int8 import calibration_batches
from pdecnn.deploy.lower import check_inputs
from pdecnn.deploy.onnx import OPS, to_onnx
from pdecnn.deploy.sizes import check_other_size
from pdecnn.shared.extras import require
from pdecnn.shared.files import saving
from pdecnn.shared.modules import tensors_in

FORMATS = {"onnx": ".onnx", "pte": ".pte", "pt2": ".pt2"}


class ExportWarning(UserWarning):
    """A file that is right but not what one may hope for, such as an 8-bit one that is slower."""


@dataclass(frozen=True)
class ExportReport:
    """What was written and how it compares with the model.

    Attributes:
        path: The file.
        format: `"onnx"`, `"pte"` or `"pt2"`.
        ops: `"portable"` or `"fused"`.
        int8: Whether convolutions and fully connected layers are in 8 bits.
        bytes: Size of the file.
        agreement: Comparison of the outputs; None if it was not asked for.
    """

    path: str
    format: str
    ops: str
    int8: bool
    bytes: int
    agreement: Agreement | None

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def export(
    model: nn.Module,
    path: str | os.PathLike[str],
    example_inputs: Any,
    *,
    format: str = "onnx",
    ops: str = "portable",
    int8: Tensor | Iterable[Tensor | Sequence[Tensor]] | None = None,
    opset: int = 20,
    free_size: bool = False,
    check: Any = True,
) -> ExportReport:
    """Writes `model` for an edge runtime, runs the file and compares.

    The file is written under a temporary name beside `path` and renamed when its outputs agree with the model's to 1e-4
    of the largest one. If they do not, an `ExportError` names the first module that differs and nothing is left behind.

    Args:
        model: Any model of ours, of timm, or built from our layers; it is exported in eval mode and not changed.
        path: Where the file goes.
        example_inputs: One input or all of them, with the sizes to export for. The batch stays free (but in `.pte`).
            What a model takes or gives as lists, dicts or dataclasses becomes tensors with the names there.
        format: `"onnx"` for ONNX Runtime, `"pte"` for ExecuTorch, `"pt2"` for AOTInductor.
        ops: `"portable"` runs anywhere; `"fused"` (ONNX alone) makes each Global layer one node, for sessions made with
            `pdecnn.deploy.session_options()`.
        int8: Batches of training inputs to calibrate 8-bit convolutions with (ONNX alone); None for float.
        opset: Version of the ONNX operators; one that cannot be written is refused.
        free_size: Whether height and width (or the length of a signal) stay free too, as far as the model allows (ONNX
            alone); the file is then compared at a second size.
        check: Whether to compare, or the inputs to compare on; the example inputs by default. 8-bit files are compared
            too, but differ by design: read their agreement in the report.

    Example:
        >>> import tempfile, timm
        >>> net = timm.create_model("mnist_toy_global").eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pdecnn.export(net, f"{folder}/net.onnx", torch.rand(2, 1, 28, 28)).agreement.top1
        1.0
    """
    _check_options(format, ops, int8 is not None, opset, free_size)
    target = _check_path(path, format)
    model, names = flatten(model, example_inputs)
    inputs = check_inputs(model, tensors_in(example_inputs))
    at = inputs if isinstance(check, bool) else check_inputs(model, tensors_in(check))
    batches = None if int8 is None else calibration_batches(int8, inputs)
    temporary = _temporary_beside(target)
    try:
        write, load = _writers(format, ops, opset, batches, free_size, names)
        with saving(target):
            write(model, inputs, temporary)
        agreement = None
        if check is not False:
            agreement = compare(answers(model, at), _run(load, temporary, at))
            run_part = partial(_run_part, _writers(format, ops, opset, batches)[0], load, target.suffix)
            _refuse_if_different(agreement, model, at, target, run_part, int8 is not None)
            if free_size:
                check_other_size(model, inputs, partial(_run, load, temporary))
        size = temporary.stat().st_size
        with saving(target):
            os.replace(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    return ExportReport(str(target), format, ops, int8 is not None, size, agreement)


def session(path: str | os.PathLike[str], *, ops: str = "portable", threads: int | None = None) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU for an exported file."""
    from pdecnn.deploy.sessions import session_options

    onnxruntime = require("onnxruntime", "export")
    options = session_options(threads=threads, fused=ops == "fused")
    return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


Write = Callable[[nn.Module, Sequence[Tensor], Path], None]
Load = Callable[[Path], Runner]


def _writers(
    format: str, ops: str, opset: int, batches: Any, free_size: bool = False, names: Any = None
) -> tuple[Write, Load]:
    if format == "pte":
        from pdecnn.deploy.executorch import load_pte, write_pte

        return write_pte, load_pte
    if format == "pt2":
        from pdecnn.deploy.aot import load_pt2, write_pt2

        return write_pt2, load_pt2

    def write(model: nn.Module, inputs: Sequence[Tensor], path: Path) -> None:
        proto = to_onnx(model, inputs, ops=ops, opset=opset, names=names, free_size=free_size)
        if batches is None:
            path.write_bytes(proto.SerializeToString())
            return
        from pdecnn.deploy.int8 import quantise
        from pdecnn.deploy.onnx import clean

        small = quantise(proto, batches)
        clean(small)
        path.write_bytes(small.SerializeToString())
        _warn_if_slower(proto, path, inputs)

    return write, lambda path: onnx_runner(session(path, ops=ops))


def _run(load: Load, file: Path, inputs: Sequence[Tensor]) -> list[Tensor]:
    try:
        return load(file)(inputs)
    except (ImportError, RuntimeError):
        raise
    except Exception as error:  # ONNX Runtime's own, of no common kind
        wide = any(x.is_floating_point() and x.dtype != torch.float32 for x in inputs)
        hint = " Its operators are for float32 above all: export model.float()." if wide else ""
        raise ExportError(f"export: the runtime cannot run the file: {error}{hint} Nothing was left behind.") from error


def _run_part(write: Write, load: Load, suffix: str, module: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"part{suffix}"
        write(module, inputs, file)
        return load(file)(inputs)


def _refuse_if_different(
    agreement: Agreement, model: nn.Module, inputs: Sequence[Tensor], target: Path, run_part: Any, int8: bool
) -> None:
    if agreement.max_error <= TOLERANCE or (int8 and math.isfinite(agreement.max_error)):
        return
    if int8:
        raise ExportError(
            "export: the 8-bit file gives values that are not finite where the model's are. Calibrate on more of the "
            f"training inputs. Nothing was left at {target}."
        )
    where = first_difference(model, inputs, run_part)
    raise ExportError(
        f"export: the file differs from the model by {agreement.max_error:.1e} of the largest output (top-1 agreement "
        f"{agreement.top1:.1%}); at most {TOLERANCE:g} is accepted. First difference: {where}. Nothing was left at "
        f"{target}."
    )


def _warn_if_slower(proto: Any, small: Path, inputs: Sequence[Tensor]) -> None:
    """Compares 8 bits with float on this machine, on one thread and one sample."""
    from pdecnn.deploy.sessions import session_options

    onnxruntime = require("onnxruntime", "export")
    options = session_options(threads=1, fused=False)
    one = [x[:1] for x in inputs]
    runs = {
        name: partial(
            onnx_runner(onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])), one
        )
        for name, source in (("float", proto.SerializeToString()), ("int8", small.read_bytes()))
    }
    times = measure(runs, rounds=7, max_seconds=2.0)
    if times["int8"].median > times["float"].median:
        warnings.warn(
            f"export: on this machine the 8-bit file takes {1e3 * times['int8'].median:.2f} ms for one sample, the "
            f"float file {1e3 * times['float'].median:.2f} ms.",
            ExportWarning,
            stacklevel=4,
        )


def _check_options(format: str, ops: str, int8: bool, opset: int, free_size: bool) -> None:
    if format not in FORMATS:
        raise ValueError(f"export: format must be one of {', '.join(map(repr, FORMATS))}, got {format!r}.")
    if ops not in OPS:
        raise ValueError(f"export: ops must be one of {', '.join(map(repr, OPS))}, got {ops!r}.")
    if format != "onnx" and (ops == "fused" or int8):
        what = "ops='fused'" if ops == "fused" else "int8"
        raise ValueError(f"export: {what} is for format='onnx', got format={format!r}.")
    if free_size and (format != "onnx" or int8):
        raise ValueError(f"export: free_size=True is for float ONNX files, got format={format!r}, int8={int8}.")
    if ops == "fused" and int8:
        raise ValueError("export: int8 is calibrated on portable operators; use ops='portable'.")
    if isinstance(opset, bool) or not isinstance(opset, int):
        raise TypeError(f"export: opset must be an int such as 20, got {opset!r}.")


def _check_path(path: str | os.PathLike[str], format: str) -> Path:
    target = Path(path)
    if target.suffix != FORMATS[format]:
        raise ValueError(f"export: a {format} file is named *{FORMATS[format]}, got {os.fspath(path)!r}.")
    if target.is_dir():
        raise OSError(f"export: cannot write {target}: it is a folder.")
    if not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise OSError(f"export: cannot write {target}: its folder {target.parent} must exist and be writable.")
    return target


def _temporary_beside(target: Path) -> Path:
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".tmp-{target.stem}-", suffix=target.suffix)
    os.close(descriptor)
    os.chmod(name, 0o644)
    return Path(name)
