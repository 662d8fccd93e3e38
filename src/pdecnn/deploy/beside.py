"""What a file with fused operators needs beside it: the library of the operators, and how to load both."""

import re
from pathlib import Path

from pdecnn.deploy.sessions import library_path
from pdecnn.shared.files import write_atomic

LOADER = '''"""Loads {file} by ONNX Runtime alone (pip install onnxruntime): from {module} import session"""

from pathlib import Path

import onnxruntime

here = Path(__file__).parent
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(str(here / "{library}"))
session = onnxruntime.InferenceSession(str(here / "{file}"), options)
'''


def write_beside(file: Path) -> tuple[Path, Path]:
    """Copies the library into the folder of an ONNX file and writes `load_NAME.py`; returns both paths."""
    source = library_path()
    library, module = file.parent / source.name, "load_" + re.sub(r"\W", "_", file.stem)
    if not (library.is_file() and library.read_bytes() == source.read_bytes()):
        write_atomic(library, source.read_bytes())
    loader = file.parent / f"{module}.py"
    write_atomic(loader, LOADER.format(file=file.name, module=module, library=library.name))
    return library, loader
