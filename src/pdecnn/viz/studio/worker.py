"""A condense job in a process of its own: `python -m pdecnn.viz.studio.worker FOLDER`.

`settings.json` in the folder says what to do; each line on standard output is a JSON object that says how far it is.
The export of a model changes global state of torch, so that no one else may use torch in the same process meanwhile.
"""

import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from pdecnn.condensation.job import run_job
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.stages import StoppedError
from pdecnn.deploy.api import export
from pdecnn.shared.reading import MB, read_object
from pdecnn.training import Loaders
from pdecnn.training.inputs import Input
from pdecnn.training.own import open_data
from pdecnn.training.progress import Reporter, describe
from pdecnn.viz.studio.drawing import note, tile, tiles
from pdecnn.viz.studio.nets import open_net
from pdecnn.viz.studio.pictures import to_picture

SETTINGS, TEACHER = "settings.json", "given.safetensors"
SHOWN, DIFFERENT = 12, 6  # pictures with both answers; of them at most so many where the answers differ
EXPECTED = (OSError, ValueError, RuntimeError, ImportError, TypeError)
Tell = Callable[..., None]


def perform(folder: Path, tell: Tell) -> None:
    """Does the job, or goes on with it, and tells of it: `tell(text=..., done=..., total=...)` and the like."""
    given = read_object(folder / SETTINGS, 16 * MB)
    teacher = open_net(given["name"], given["size"]).model
    teacher.load_state_dict(safetensors.torch.load_file(folder / TEACHER))
    wanted = Input.from_dict(given["input"])
    loaders = open_images(given["data"], wanted, given["seed"])

    def progress(text: str, done: int, total: int) -> None:
        tell(text=text, done=done, total=total)

    student, result = run_job(
        folder,
        teacher,
        loaders,
        epochs=given["epochs"],
        seed=given["seed"],
        prepared=Plan.from_dict(given["plan"]),
        resume=(folder / "job.json").is_file(),
        say=lambda line: tell(line=line),
        progress=progress,
        reporter=lambda: Watch(tell),
        **given["rates"],
    )
    tell(history=list(result.history), rows=result.rows(), worse=result.worse, notes=list(result.notes))
    progress("drawing samples, writing C", 0, 1)
    tell(samples=both_answers(teacher, student, loaders, wanted))
    tell(files=[str(path) for path in write_files(folder, student, loaders, tell)])
    tell(state="finished", text=f"finished in {result.seconds:.0f} s")


class Watch(Reporter):
    """Tells of each step and epoch."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def start(self, name: str, epochs: int, steps: int, step: int) -> None:
        """Notes the size of the run; what was learned after its last checkpoint is learned again."""
        self.total, self.steps = epochs * steps, steps
        self.tell(text="distilling", done=step, total=self.total, epochs=step // steps)

    def step(self, step: int, loss: float, lr: float) -> None:
        """A step was made."""
        text = f"distilling, epoch {-(-step // self.steps)}, loss {loss:.3f}"
        self.tell(text=text, done=step, total=self.total)

    def epoch(self, row: dict[str, Any]) -> None:
        """An epoch ended."""
        self.tell(epoch=row, line=f"epoch {row['epoch']}: {describe(row)}")


def open_images(data: str, wanted: Input, seed: int) -> Loaders:
    """The embedded images or the visitor's own."""
    loaders = open_data(data, wanted, seed=seed, workers=0)
    shape = tuple(loaders.input.get("shape") or wanted.shape)
    if shape != tuple(wanted.shape):
        sizes = ("x".join(map(str, q)) for q in (shape, wanted.shape))
        raise ValueError("The images of {} are {}, and this net takes {}: choose others.".format(data, *sizes))
    return loaders


@torch.no_grad()
def both_answers(teacher: nn.Module, student: nn.Module, data: Loaders, wanted: Input) -> str:
    """Pictures with the true class and both answers; those where they differ first."""
    x, y = next(iter(data.evaluation or data.plain or data.train.batches(0)))[:2]
    a, b = (model.eval()(x).argmax(1) for model in (teacher, student))
    differ, agree = (q.nonzero().flatten().tolist() for q in (a != b, a == b))
    known: list[Any] = [tuple(data.input.get(key) or getattr(wanted, key)) for key in ("shape", "mean", "std")]

    def name(i: int) -> str:
        return data.classes[i] if 0 <= i < len(data.classes) else f"class {i}" if i >= 0 else "unknown"

    def shown(i: int) -> str:
        said = (f"{name(int(q[i]))} {'✓' if q[i] == y[i] else '✗'}" for q in (a, b))
        text = "{}: before {}, after {}".format(name(int(y[i])), *said)
        return tile(to_picture(x[i], Input(*known)), text)

    items = [shown(i) for i in [*differ[:DIFFERENT], *agree, *differ[DIFFERENT:]][:SHOWN]]
    same = 100 * len(agree) / max(1, len(x))
    told = f"Of {len(x)} images both give the same answer to {same:.1f} %. Some where they differ come first."
    return note(told) + tiles(items, "small")


def write_files(folder: Path, student: nn.Module, loaders: Loaders, tell: Tell) -> list[Path]:
    """The checkpoint as one file, the ONNX file if there is one, C, and the report."""
    packed = folder / "student.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((folder / "student").iterdir()):
            archive.write(file, f"student/{file.name}")
    files = [packed, *folder.glob("student.onnx")]
    x = next(iter(loaders.evaluation or loaders.plain or loaders.train.batches(0)))[0][:1]
    classes = {"classes": list(loaders.classes)}
    try:
        export(student, folder / "student.c", x, format="c", metadata=classes, progress=False)
        files += [folder / "student.c", folder / "student.h"]
    except EXPECTED as error:
        tell(line=f"No C file: {error}")
    return [*files, folder / "report.html"]


def main(folder: str) -> int:
    """Does the job of a folder; what others print goes to standard error."""
    out, sys.stdout = sys.stdout, sys.stderr

    def tell(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        perform(Path(folder), tell)
    except StoppedError as error:
        tell(state="cancelled", text=str(error))
    except EXPECTED as error:
        tell(state="failed", text=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
