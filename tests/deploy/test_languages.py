"""The programs of examples/ in other languages: built, run on a fused file, and equal to Python to the last bit."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import pdecnn
from pdecnn.deploy.sessions import session_options

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra export is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples"
LIBRARIES = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
HEADERS = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include/onnxruntime"]
JNA = Path(os.environ.get("JNA_JAR", "/usr/share/java/jna.jar"))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """A folder with a fused file and its library, an input, and what Python makes of it."""
    home = tmp_path_factory.mktemp("fused")
    torch.manual_seed(0)
    net, x = timm.create_model("mnist_toy_global.mnist", pretrained=True).eval(), torch.randn(2, 1, 28, 28)
    pdecnn.export(net, home / "net.onnx", x, ops="fused")
    x.numpy().tofile(home / "input.bin")
    session = onnxruntime.InferenceSession(home / "net.onnx", session_options(threads=1))
    (answer,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert any(node.domain == "pdecnn" for node in pytest.importorskip("onnx").load(home / "net.onnx").graph.node)
    return home, answer


def numbers(command, home):
    library = next(home.glob("libpdecnn_ort*"))
    done = subprocess.run([*command(home / "net.onnx", library)], capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr
    return np.array([float(line) for line in done.stdout.split()], dtype=np.float32)


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARIES, reason="this onnxruntime has no libonnxruntime.so of its own")
@pytest.mark.skipif(not (shutil.which("java") and JNA.is_file()), reason="no java, or no jna.jar (libjna-java)")
def test_java(fused):
    home, answer = fused
    program = ["java", "-cp", str(JNA), str(EXAMPLES / "java/RunFused.java"), str(LIBRARIES[0])]
    found = numbers(lambda model, library: [*program, model, library, "input.bin", "2,1,28,28"], home)
    np.testing.assert_array_equal(found.reshape(answer.shape), answer)


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARIES, reason="this onnxruntime has no libonnxruntime.so of its own")
@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("c++")), reason="no cmake, or no C++ compiler")
def test_cpp(fused, tmp_path, monkeypatch):
    include = next((h for h in HEADERS if h and (Path(h) / "onnxruntime_cxx_api.h").is_file()), None)
    if include is None:
        pytest.skip("no headers of ONNX Runtime: install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE")
    home, answer = fused
    options = [f"-DONNXRUNTIME_INCLUDE={include}", f"-DONNXRUNTIME_LIBRARY={LIBRARIES[0]}"]
    subprocess.run(["cmake", "-S", EXAMPLES / "cpp", "-B", tmp_path, *options], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path], check=True, capture_output=True)
    (tmp_path / "libonnxruntime.so.1").symlink_to(LIBRARIES[0])  # the name that programs ask for
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = numbers(lambda model, library: [tmp_path / "run_fused", model, library, "input.bin", "2,1,28,28"], home)
    np.testing.assert_array_equal(found.reshape(answer.shape), answer)
