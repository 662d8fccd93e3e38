"""A model in any runtime as a module that is called like any other, and the choice of the fastest one."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from pdecnn.analysis.latency import measure
from pdecnn.deploy.check import TOLERANCE, CannotExportError, ExportError, compare
from pdecnn.deploy.engines import ENGINES, Engine, OnnxEngine, make_engine
from pdecnn.shared.modules import tensors_in
from pdecnn.shared.trees import map_tensors

RUNTIMES = ("eager", "optimized", "compile", *ENGINES, "auto")
# compiling takes a minute, and 8 bits change the answers: both are for those who ask for them by name
TRIED_BY_AUTO = ("optimized", "onnx-fused", "onnx", "c")
ROUNDS, SECONDS = 15, 3.0


class Served(nn.Module):
    """A model for inference in one runtime: call it with a batch, from any number of threads.

    It may be copied and pickled; a file or a library is then loaded again from what is inside. It has no gradients and
    cannot be trained.

    Attributes:
        runtime: Where it runs, one of `pdecnn.deploy.bench.RUNTIMES`.
        milliseconds: What each runtime took for the example, if several were tried.
        left_out: Why those that were to be tried were not.
        engine: What runs it outside torch, else None.
    """

    def __init__(self, runtime: str, run: nn.Module | Engine, x: Tensor, answer: Any) -> None:
        super().__init__()
        self.runtime = runtime
        self.milliseconds: dict[str, float] = {}
        self.left_out: dict[str, str] = {}
        self.model = run if isinstance(run, nn.Module) else None
        self.engine = run if isinstance(run, Engine) else None
        self.takes, self.dtype = tuple(x.shape[1:]), x.dtype
        self.answer = _structure(answer, runtime) if self.engine else None
        super().train(False)

    def forward(self, x: Tensor) -> Any:
        """What the model gives."""
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"Served: the input asks for gradients, and {self.runtime} has none to give. Use the model that this "
                "was made from, or call under torch.no_grad()."
            )
        if self.engine is None:
            assert self.model is not None
            with torch.no_grad():
                return self.model(x)
        if tuple(x.shape[1:]) != self.takes or x.dtype != self.dtype or x.device.type != "cpu":
            sizes = ", ".join(map(str, self.takes))
            raise ValueError(
                f"Served: {self.runtime} was made for inputs of shape (N, {sizes}), {self.dtype}, on the CPU, got "
                f"{tuple(x.shape)}, {x.dtype}, on {x.device}. Make another with such an example."
            )
        outputs = iter(self.engine([x]))
        return next(outputs) if isinstance(self.answer, Tensor) else map_tensors(self.answer, lambda _: next(outputs))

    def train(self, mode: bool = True) -> "Served":
        """Refuses training."""
        if mode:
            raise RuntimeError("Served: this copy is for inference alone. Train the model that it was made from.")
        return super().train(False)

    def extra_repr(self) -> str:
        """Where it runs, and what was tried."""
        tried = ", ".join(f"{name} {ms:.3g} ms" for name, ms in self.milliseconds.items())
        return f"runtime={self.runtime!r}" + (f" of {tried}" if tried else "")


def _structure(answer: Any, runtime: str) -> Any:
    """Lists, tuples and dicts as in the answer, with an empty tensor in each place."""
    places: list[Tensor] = []

    def place(_: Tensor) -> Tensor:
        places.append(torch.empty(0))
        return places[-1]

    found = map_tensors(answer, place)
    if len(places) != len(tensors_in(answer)):
        raise CannotExportError(
            f"optimize_for_inference: {runtime} gives tensors, and lists, tuples and dicts of them; the model gives "
            f"others, in a {type(answer).__name__}. Use runtime='optimized'."
        )
    return found


def check_runtime(where: str, name: str) -> None:
    """A ValueError unless there is such a runtime."""
    if name not in RUNTIMES:
        raise ValueError(f"{where}: runtime must be one of {', '.join(RUNTIMES)}, got {name!r}.")


def serve(
    runtime: str,
    model: nn.Module,
    x: Tensor,
    optimized: Callable[[], nn.Module],
    int8: Sequence[Sequence[Tensor]] | None = None,
) -> Served:
    """`model`, in evaluation and without gradients, in a runtime, after its answers for `x` were compared."""
    in_8_bits = runtime.endswith("int8")
    if in_8_bits and int8 is None:
        raise ValueError(
            f"optimize_for_inference: {runtime} has to be calibrated: pass int8=batches, some hundred training inputs."
        )
    if runtime in ENGINES and x.device.type != "cpu":
        raise ValueError(f"optimize_for_inference: {runtime} runs on the CPU, the model is on {x.device}.")
    with torch.no_grad():
        answer = model(x.clone())
        match runtime:
            case "eager":
                run: Any = model
            case "optimized":
                run = optimized()
            case "compile":
                run = torch.compile(model, dynamic=True)
            case _:
                run = make_engine(
                    runtime, model, (x,), threads=torch.get_num_threads(), int8=int8 if in_8_bits else None
                )
        served = Served(runtime, run, x, answer)
        expected, got = tensors_in(answer), tensors_in(served(x.clone()))
    error = compare(expected, got).max_error
    types = [q.dtype for q in got] == [q.dtype for q in expected]
    if not types or error > (float("inf") if in_8_bits else TOLERANCE):
        raise ExportError(
            f"optimize_for_inference: in {runtime} the outputs differ from the model's by {error:.1e} of the largest "
            f"one, or in their dtypes; at most {TOLERANCE:g} is accepted. Use runtime='optimized'."
        )
    return served


def fastest(runtimes: Sequence[str], x: Tensor, make: Callable[[str], Served]) -> Served:
    """The fastest of several runtimes for `x`, in interleaved rounds; one that fails is left out, and says why."""
    made: dict[str, Served] = {}
    left_out: dict[str, str] = {}
    for name in runtimes:
        fused = made["onnx-fused"].engine if name == "onnx" and "onnx-fused" in made else None
        if isinstance(fused, OnnxEngine) and not fused.fused:
            left_out[name] = "the same file as onnx-fused, since the net has no operator of pdecnn"
            continue
        try:
            made[name] = make(name)
        except Exception as error:  # of any runtime, for any model
            left_out[name] = str(error)
    if not made:
        raise RuntimeError(f"optimize_for_inference: no runtime can run the model: {left_out}.")
    with torch.no_grad():
        times = measure({name: partial(net, x) for name, net in made.items()}, rounds=ROUNDS, max_seconds=SECONDS)
    best = made[min(made, key=lambda name: times[name].p20)]
    best.milliseconds = {name: 1e3 * timing.p20 for name, timing in times.items()}
    best.left_out = left_out
    return best
