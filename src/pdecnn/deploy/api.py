"""`pdecnn.export`: a model in, a file for an edge runtime out, compared with the model before it gets its name."""

import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import measure
from pdecnn.deploy.beside import write_beside
from pdecnn.deploy.c.footprint import Footprint
from pdecnn.deploy.c.write import Written, c_name
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
from pdecnn.deploy.metadata import metadata_of, write_metadata
from pdecnn.deploy.names import Names
from pdecnn.deploy.onnx import OPS, to_onnx
from pdecnn.deploy.open_steps import as_input, open_range, to_open_onnx
from pdecnn.layers.steps import with_steps
from pdecnn.shared.extras import require
from pdecnn.shared.files import saving, sync_folder, write_atomic
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.progress import ProgressCallback, begin, counted, showing

DYNAMIC = ("batch", "size", "nothing")
FORMATS = {"onnx": ".onnx", "c": ".c", "pte": ".pte", "pt2": ".pt2"}


class ExportWarning(UserWarning):
    """A file that is right but not what one may hope for, such as an 8-bit one that is slower."""


@dataclass(frozen=True)
class ExportReport:
    """What was written and how it compares with the model.

    Attributes:
        path: The file.
        format: `"onnx"`, `"c"`, `"pte"` or `"pt2"`.
        ops: `"portable"` or `"fused"`.
        int8: Whether convolutions and fully connected layers are in 8 bits.
        bytes: Size of the file.
        agreement: Comparison of the outputs; None if it was not asked for.
        beside: What the file needs beside it: for fused operators their library, and a loader in Python; for C its
            header.
        footprint: Of a C file: memory, weights and work, step by step; else None.
    """

    path: str
    format: str
    ops: str
    int8: bool
    bytes: int
    agreement: Agreement | None
    beside: tuple[str, ...] = ()
    footprint: Footprint | None = None

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
    check: Any = True,
    dynamic: str = "batch",
    names: Names | None = None,
    metadata: Mapping[str, Any] | None = None,
    open_steps: bool = False,
    progress: ProgressCallback | bool = True,
) -> ExportReport:
    """Writes `model` for an edge runtime, runs the file and compares.

    The file is written under a temporary name beside `path` and renamed when its outputs agree with the model's to 1e-4
    of the largest one. If they do not, an `ExportError` names the first module that differs and nothing is left behind.

    Args:
        model: Any model of ours, of timm, or built from our layers; it is exported in eval mode and not changed.
        path: Where the file goes.
        example_inputs: One input or all of them, with the sizes to export for; or the dict or list that it takes.
        format: `"onnx"` for ONNX Runtime, `"c"` for one C99 file and its header, for one sample at a time on any
            device, `"pte"` for ExecuTorch, `"pt2"` for AOTInductor.
        ops: `"portable"` runs anywhere; `"fused"` (ONNX alone) makes each Global layer one node, whose library is put
            beside the file, with a loader; `pdecnn.deploy.session_options()` knows it too.
        int8: Batches of training inputs to calibrate 8 bits with (ONNX and C); None for float. In ONNX convolutions and
            fully connected layers are in 8 bits, in C all that has a form in integers; `footprint` says what has not.
        opset: Version of the ONNX operators; one that cannot be written is refused.
        check: Whether to compare, or the inputs to compare on; the example inputs by default. 8-bit files are compared
            too, but differ by design: read their agreement in the report.
        dynamic: Which sizes of the inputs may change later: `"batch"` (none in `.pte`); `"size"` (ONNX alone): also
            height and width, where the net allows it, compared at twice the size too; `"nothing"`.
        names: `{"inputs": [...], "outputs": [...]}` (ONNX alone). By default `input`, or the arguments of `forward` if
            they are several; `logits`, `output`, or the keys of the dict that the model returns.
        metadata: What the file says of itself (ONNX; of C the classes), such as `{"classes": ["cat", "dog"]}`; size,
            mean and std as far as the model knows them, and the version of pdecnn, are always there.
        open_steps: Whether the number of time steps is the last input of the file, an int64 named `K` (fused ONNX
            alone); compared for every K that the model serves. Else the file has the steps that the model has now.
        progress: Whether to show what takes over two seconds, or what is called with each part that is done.

    Example:
        >>> import tempfile, timm
        >>> net = timm.create_model("mnist_toy_global").eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pdecnn.export(net, f"{folder}/net.onnx", torch.rand(2, 1, 28, 28)).agreement.top1
        1.0
    """
    _check_options(format, ops, int8 is not None, opset, dynamic, names, metadata)
    if open_steps and (format, ops) != ("onnx", "fused"):
        raise ValueError("export: K stays open in fused ONNX files alone; use ops='fused', or set K with with_steps.")
    target = _check_path(path, format)
    own, (model, found_names) = model, flatten(model, example_inputs)
    names = names or found_names or None
    inputs = check_inputs(model, tensors_in(example_inputs))
    at = inputs if isinstance(check, bool) else check_inputs(model, tensors_in(check))
    compared = () if check is False else (at, _twice_as_large(model, at)) if dynamic == "size" else (at,)
    batches = None if int8 is None else calibration_batches(int8, inputs)
    with saving(target):
        temporary = _temporary_beside(target)
    try:
        texts: list[Written] = []
        served = open_range(model) if open_steps else (None,)
        agreement = None
        with showing(progress) as report:
            writers = partial(_writers, format, ops, opset, batches, dynamic, c_name(target), texts.append, report)
            write, load = writers()
            whole = writers(to_open_onnx)[0] if open_steps else write
            done = begin(report, f"writing {target.name}", 1)
            with saving(target):
                whole(model, inputs, temporary, names=names, metadata=metadata_of(own, inputs, metadata))
            done()
            run_part = partial(_run_part, write, load, target.suffix)
            pairs = [(x, K) for x in compared for K in served]
            for x, K in counted(pairs, report, f"comparing {target.name} with the model"):
                with nullcontext() if K is None else with_steps(model, K):
                    given = x if K is None else (*x, as_input(K))
                    found = compare(answers(model, x), _run(load, temporary, given))
                    _refuse_if_different(found, model, x, target, run_part, int8 is not None)
                if agreement is None or (K is not None and found.max_error > agreement.max_error):
                    agreement = found
        size = temporary.stat().st_size
        beside = write_beside(target) if ops == "fused" else ()
        if format == "c":
            beside = (target.with_suffix(".h"),)
            write_atomic(beside[0], texts[0].header)
        with saving(target):
            sync_folder(temporary)  # of a file: its content
            os.replace(temporary, target)
            sync_folder(target.parent)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
    cost = texts[0].footprint if texts else None
    return ExportReport(str(target), format, ops, int8 is not None, size, agreement, tuple(map(str, beside)), cost)


def session(path: str | os.PathLike[str] | bytes, *, ops: str = "portable", threads: int | None = None) -> Any:
    """An `onnxruntime.InferenceSession` on the CPU for an exported file, or for what is in one."""
    from pdecnn.deploy.sessions import session_options

    onnxruntime = require("onnxruntime", "export")
    options = session_options(threads=threads, fused=ops == "fused")
    return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


Write = Callable[..., None]  # (model, inputs, path), and for ONNX names and metadata
Load = Callable[[Path], Runner]


def _writers(
    format: str,
    ops: str,
    opset: int,
    batches: Any,
    dynamic: str,
    name: str,
    written: Callable[[Written], object],
    progress: ProgressCallback | None,
    make: Callable[..., Any] | None = None,
) -> tuple[Write, Load]:
    if format == "c":
        from pdecnn.deploy.c.build import runner
        from pdecnn.deploy.c.write import write as write_c

        def save(model: nn.Module, inputs: Sequence[Tensor], path: Path, *, metadata: Any = None, **_: Any) -> None:
            texts = write_c(model, inputs, name, metadata, int8=batches, progress=progress)
            written(texts)
            path.write_text(texts.source)

        return save, lambda path: runner(path.read_text())
    if format == "pte":
        from pdecnn.deploy.executorch import load_pte, write_pte

        return lambda model, inputs, path, **_: write_pte(model, inputs, path), load_pte
    if format == "pt2":
        from pdecnn.deploy.aot import load_pt2, write_pt2

        return lambda model, inputs, path, **_: write_pt2(model, inputs, path), load_pt2

    def write(
        model: nn.Module,
        inputs: Sequence[Tensor],
        path: Path,
        *,
        names: Names | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        proto = (make or to_onnx)(model, inputs, ops=ops, opset=opset, names=names, dynamic=dynamic)
        if dynamic == "size":
            _refuse_fixed_sizes(proto, model)
        write_metadata(proto, metadata or {})
        if batches is None:
            path.write_bytes(proto.SerializeToString())
            return
        from pdecnn.deploy.int8 import quantise
        from pdecnn.deploy.onnx import clean

        small = quantise(proto, batches)
        clean(small)
        write_metadata(small, metadata or {})
        path.write_bytes(small.SerializeToString())
        _warn_if_slower(proto, path, inputs)

    return write, lambda path: onnx_runner(session(path, ops=ops))


def _refuse_fixed_sizes(proto: Any, model: nn.Module) -> None:
    for item in proto.graph.input:
        sizes = item.type.tensor_type.shape.dim
        fixed = [d.dim_value for i, d in enumerate(sizes) if i > 1 and not d.dim_param]
        if fixed:
            raise ValueError(
                f"export: dynamic='size' asks for free height and width, but {type(model).__name__} fixes sizes of "
                f"{item.name} to {', '.join(map(str, fixed))}, as nets do whose layers know the size of their maps. "
                "Use dynamic='batch'."
            )


def _twice_as_large(model: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """One sample, beside and below itself; a ValueError if the model does not run on it."""
    large = [x[:1].repeat(1, 1, *[2] * (x.ndim - 2)) if x.ndim > 2 else x[:1] for x in inputs]
    try:
        answers(model, large)
    except Exception as error:  # a model may refuse in any way
        shapes = ", ".join(str(tuple(x.shape)) for x in large)
        raise ValueError(
            f"export: dynamic='size' asks for free height and width, but {type(model).__name__} does not run on inputs "
            f"of shape {shapes}: {error}. Use dynamic='batch'."
        ) from error
    return large


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


def _check_options(
    format: str,
    ops: str,
    int8: bool,
    opset: int,
    dynamic: str,
    names: Names | None,
    metadata: Mapping[str, Any] | None,
) -> None:
    if format not in FORMATS:
        raise ValueError(f"export: format must be one of {', '.join(map(repr, FORMATS))}, got {format!r}.")
    if ops not in OPS:
        raise ValueError(f"export: ops must be one of {', '.join(map(repr, OPS))}, got {ops!r}.")
    if dynamic not in DYNAMIC:
        raise ValueError(f"export: dynamic must be one of {', '.join(map(repr, DYNAMIC))}, got {dynamic!r}.")
    given = {"ops='fused'": ops == "fused", "names": names, "dynamic": dynamic != "batch"}
    given |= {"int8": int8 and format != "c", "metadata": metadata and format != "c"}
    for what in (what for what, is_given in given.items() if is_given and format != "onnx"):
        raise ValueError(f"export: {what} is for format='onnx', got format={format!r}.")
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
