"""Memory of activations beside other makers of files for small devices: ExecuTorch, TFLite Micro, Aidge, onnx2c.

Each peer lives in an environment of its own, named by its Python; rows of those that are not named stay as they are:

    python benchmarks/edge_peers.py executorch=.../bin/python litert=... tflm=... aidge=...

executorch: `pip install executorch`, with pdecnn. litert: `pip install "torch<2.15" litert-torch`, with pdecnn; it
writes the files that tflm, `pip install tflite-micro`, runs. aidge: `pip install aidge-core aidge-backend-cpu
aidge-onnx`. What fails is kept with its error. All get the same graph: `pdecnn.deploy.lower`, batch norms folded, the
solver in plain operators. One image, float32. `arena` is what is planned for activations; that of TFLite Micro holds
the input and the output too, which belong to the caller elsewhere, so ours is taken with them beside it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "edge_peers.json"
MODELS = ("mnist_toy_global", "mnist_resnet_tiny_global", "cifar_resnet_tiny_global", "cifar_resnet_tiny")
ABSENT = {"onnx2c": "in no registry: pip, apt and npm have no package of this name (only its sources, to be built)"}
Row = dict[str, Any]


def make(name: str) -> tuple[Any, Any]:
    """The model and one image; the same weights in every environment."""
    import timm
    import torch

    import pdecnn  # noqa: F401  (registers the models)

    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    return model, torch.randn(1, *model.default_cfg["input_size"])


def graph(name: str) -> tuple[Any, Any]:
    """What all peers are given, and one image."""
    from pdecnn.deploy.lower import lower

    model, x = make(name)
    return lower(model, (x,), dynamic="nothing"), x


def milliseconds(call: Callable[[], object], seconds: float = 1.0) -> float:
    """The least of the calls in `seconds`: other work on the machine only adds to it."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 5:
        start = time.perf_counter()
        call()
        found.append(1000 * (time.perf_counter() - start))
    return min(found)


def ours(name: str, folder: Path) -> Row:
    """The C file; also writes the ONNX file that Aidge reads, and the image with the model's answer."""
    import numpy as np

    import pdecnn
    from pdecnn.deploy.c.build import Built
    from pdecnn.deploy.c.write import write

    model, x = make(name)
    pdecnn.export(model, folder / f"{name}.onnx", x, dynamic="nothing", progress=False)
    written = write(model, (x,), "net")
    cost = written.footprint
    built = Built(written.source, "net")
    values: Any = x.numpy().ravel()
    out: Any = np.zeros(10, np.float32)
    arena: Any = np.zeros(cost.sram // 4, np.float32)
    ms = milliseconds(lambda: built.run(arena, values, out))
    np.save(folder / f"{name}.npy", np.concatenate([values, model(x).detach().numpy().ravel()]))
    return {"arena": cost.sram, "input_and_output": 4 * (values.size + out.size), "weights": cost.flash, "ms": ms}


def executorch(name: str, folder: Path) -> Row:
    """The memory plan of a program of portable kernels, each value where the greedy planner puts it."""
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    from pdecnn.deploy.lower import trace

    module, x = graph(name)
    edge = to_edge(trace(module, (x,), dynamic="nothing"))
    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
    sizes = program.executorch_program.execution_plan[0].non_const_buffer_sizes
    row: Row = {"arena": sum(sizes), "file": len(program.buffer)}
    path = folder / f"{name}.pte"
    path.write_bytes(program.buffer)
    try:
        from executorch.runtime import Runtime

        loaded = Runtime.get().load_program(path)
        method = loaded.load_method("forward")
        difference = (method.execute([x])[0] - module(x)).abs().max().item()
        row |= {"difference": difference, "ms": milliseconds(lambda: method.execute([x]))}
    except Exception as error:  # a runtime may fail in any way; the plan stands without it
        row["run_error"] = shortened(error)
    return row


def litert(name: str, folder: Path) -> Row:
    """A .tflite file, for TFLite Micro."""
    import litert_torch

    module, x = graph(name)
    path = folder / f"{name}.tflite"
    litert_torch.convert(module, (x,)).export(str(path))
    return {"file": path.stat().st_size}


def tflm(name: str, folder: Path) -> Row:
    """The arena of TFLite Micro: its head, for activations, and all of it, with the structs of the interpreter."""
    import numpy as np
    from tflite_micro.python.tflite_micro import runtime

    path = folder / f"{name}.tflite"
    if not path.is_file():
        raise RuntimeError("there is no .tflite file: the converter failed")
    interpreter = runtime.Interpreter.from_file(str(path), arena_size=1 << 24)
    shape, known = interpreter.get_input_details(0)["shape"], np.load(folder / f"{name}.npy")
    values, expected = np.split(known, [int(np.prod(shape))])
    interpreter.set_input(values.reshape(shape), 0)
    interpreter.invoke()
    difference = float(np.abs(interpreter.get_output(0).ravel() - expected).max())
    with captured_stderr() as lines:
        interpreter.print_allocations()
    found = {key: int(value) for key, value in re.findall(r"Arena allocation (\w+) (\d+) bytes", lines[0])}
    ms = milliseconds(interpreter.invoke)
    row = {"arena": found["head"], "arena_total": found["total"], "file": path.stat().st_size}
    return row | {"difference": difference, "ms": ms}


def aidge(name: str, folder: Path) -> Row:
    """The peak of Aidge's memory manager for the ONNX file."""
    import aidge_backend_cpu  # noqa: F401  (registers the backend)
    import aidge_core
    import aidge_onnx
    import onnx
    from aidge_core.mem_info import generate_optimized_memory_info

    path = folder / f"{name}.onnx"
    sizes = [d.dim_value for d in onnx.load(str(path)).graph.input[0].type.tensor_type.shape.dim]
    model = aidge_onnx.load_onnx(str(path))
    unknown = sorted(
        {n.type() for n in model.get_nodes() if isinstance(n.get_operator(), aidge_core.GenericOperatorOp)}
    )
    if unknown:
        raise RuntimeError(f"aidge_onnx has no form for the ONNX operators {', '.join(unknown)}")
    model.set_datatype(aidge_core.dtype.float32)
    model.set_backend("cpu")
    if not model.forward_dims([sizes], True):
        raise RuntimeError("aidge: forward_dims could not infer the shapes")
    scheduler = aidge_core.SequentialScheduler(model)
    scheduler.generate_scheduling()
    peak, _ = generate_optimized_memory_info(scheduler, wrapping=False, display_names=False)
    return {"arena": sum(peak) if isinstance(peak, (list, tuple)) else peak, "file": path.stat().st_size}


PEERS: dict[str, Callable[[str, Path], Row]] = {
    "pdecnn": ours, "executorch": executorch, "litert": litert, "tflm": tflm, "aidge": aidge,
}  # fmt: skip
PACKAGES = {
    "pdecnn": ("torch",), "executorch": ("executorch", "torch"), "litert": ("litert-torch", "torch"),
    "tflm": ("tflite-micro",), "aidge": ("aidge-core", "aidge-onnx"),
}  # fmt: skip
STAGES = (("pdecnn", "executorch", "litert"), ("tflm", "aidge"))  # the second reads files of the first


@contextlib.contextmanager
def captured_stderr() -> Any:
    """What native code writes to stderr, as the one element of a list."""
    lines: list[str] = []
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            file.seek(0)
            lines.append(file.read().decode(errors="replace"))


def shortened(error: Exception) -> str:
    """One line of at most 300 characters, without folders of this machine."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return re.sub(r"/\S*/(?=\S)", "", text)[:300]


def measure(peer: str, name: str, folder: Path) -> Row:
    try:
        return PEERS[peer](name, folder)
    except Exception as error:  # a peer may fail in any way
        return {"error": shortened(error)}


def in_its_environment(python: str, peer: str, name: str, folder: Path) -> Row:
    """A row from a process of its own: a crash hides no other row."""
    source = str(Path(__file__).parents[1] / "src")
    given = {**os.environ, "PYTHONPATH": source if "torch" in PACKAGES[peer] else "", "OMP_NUM_THREADS": "1"}
    call = [python, __file__, "--measure", peer, name, str(folder)]
    done = subprocess.run(call, capture_output=True, text=True, env=given, check=False)
    try:
        row: Row = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        row = {"error": shortened(RuntimeError(last))}
    print(peer, name, row, flush=True)
    return row


def versions(python: str, peer: str) -> Row:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *PACKAGES[peer]], capture_output=True, text=True, check=True)
    found: Row = json.loads(done.stdout)
    return found


def compared(rows: dict[str, dict[str, Row]]) -> dict[str, dict[str, Row]]:
    """Our arena beside each peer's, model by model."""
    found: dict[str, dict[str, Row]] = {}
    for name, own in rows["pdecnn"].items():
        found[name] = {}
        for peer, theirs in rows.items():
            if peer == "pdecnn" or "arena" not in theirs[name]:
                continue
            mine = own["arena"] + (own["input_and_output"] if peer == "tflm" else 0)
            least = theirs[name]["arena"]
            found[name][peer] = {"ours": mine, "theirs": least, "no_larger": mine <= least}
    return found


def main(given: list[str]) -> None:
    """The rows of each stage side by side, `jobs=N` at a time."""
    options = dict(argument.split("=", 1) for argument in given)
    jobs = int(options.pop("jobs", 1))
    pythons = {"pdecnn": sys.executable, **options}
    before: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows: dict[str, dict[str, Row]] = {**before.get("rows", {}), **{peer: {} for peer in pythons}}
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(jobs) as pool:
        for stage in STAGES:
            tasks = [(peer, name) for peer in stage if peer in pythons for name in MODELS]
            found = pool.map(lambda task: in_its_environment(pythons[task[0]], task[0], task[1], Path(home)), tasks)
            for (peer, name), row in zip(tasks, found, strict=True):
                rows[peer][name] = row
    found_versions = {peer: versions(python, peer) for peer, python in pythons.items()}
    kept = {"jobs": jobs, "versions": {**before.get("versions", {}), **found_versions}}
    kept |= {"not_installed": ABSENT, "compared": compared(rows), "rows": rows}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept["compared"], indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], Path(sys.argv[4]))))
    else:
        main(sys.argv[1:])
