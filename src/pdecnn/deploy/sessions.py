"""Running exported models in ONNX Runtime, with the Global layer as one operator.

    >>> import numpy, onnxruntime, pdecnn.deploy.sessions  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("net.onnx", pdecnn.deploy.session_options())  # doctest: +SKIP

The operators live in a library of their own, `libpdecnn_ort`, which other languages can register as well.
"""

import os
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from pdecnn.shared.extras import require

LIBRARY_NAMES = ("libpdecnn_ort.so", "libpdecnn_ort.dylib", "pdecnn_ort.dll")


def library_path() -> Path:
    """Where the library of operators is; a RuntimeError that says why there is none."""
    if path := os.environ.get("PDECNN_ORT_LIBRARY"):
        return Path(path)
    folders = [Path(__file__).parents[1] / "kernels"]
    with suppress(PackageNotFoundError):  # an editable install keeps the library in site-packages
        folders.append(Path(str(distribution("pdecnn").locate_file("pdecnn/kernels"))))
    for folder in folders:
        for name in LIBRARY_NAMES:
            if (folder / name).is_file():
                return folder / name
    looked = " or ".join(map(str, folders))
    raise RuntimeError(
        f"onnx: no {LIBRARY_NAMES[0]} in {looked}: pdecnn was installed without a C++ compiler. Reinstall it where one "
        "is present, or export with ops='portable', which needs no library."
    )


def session_options(*, threads: int | None = None, fused: bool = True) -> Any:
    """`onnxruntime.SessionOptions` that know the operators of pdecnn.

    Args:
        threads: Number of threads inside an operator; ONNX Runtime's choice by default. The operators of pdecnn run on
            the thread that they are called on.
        fused: Whether to register the operators; False for files of portable operators.
    """
    onnxruntime = require("onnxruntime", "export")
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    if fused:
        library = library_path()
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # ONNX Runtime's own, of no common kind
            raise RuntimeError(
                f"onnx: ONNX Runtime cannot load {library}: {error}. Reinstall pdecnn, unset PDECNN_ORT_LIBRARY, or "
                "export with ops='portable', which needs no library."
            ) from error
    return options
