"""Every call that changes the disk fails once, as on a full one: run with LD_PRELOAD of faults.c by `test_faults.py`.

A row of `WRITERS` is a way of writing: `start` makes what is there before, `write` changes it, `check` says whether
what stands is whole. What `write` raises must be a SaveError, and nothing may be left beside the result after
`clean_up`.
"""

import ctypes
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exports
from entrances import CONFIG, OLD, net
from training_toys import assert_same_weights, recipe, single_thread, tiny_data, tiny_net

from pdecnn.condensation.plan import Plan
from pdecnn.shared.files import SaveError, clean_up
from pdecnn.training import fit, load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class Writer:
    """A way of writing; see above."""

    start: Callable[[Path], Any]
    write: Callable[[Path], Any]
    check: Callable[[Path, bool], None]


def _save(folder: Path, n: int) -> None:
    save_checkpoint(folder / "net", net(), {**CONFIG, "number": n})


def _check_checkpoint(folder: Path, done: bool) -> None:
    for _ in range(2):  # as it stands, and cleaned up
        found = load_checkpoint(folder / "net", model=net()).config["number"]
        assert found == 2 if done else found in (1, 2)
        clean_up(folder)
    assert [entry.name for entry in folder.iterdir()] == ["net"]


def _plan() -> Plan:
    return Plan.load(OLD / "plan.json")


def _check_plan(folder: Path, done: bool) -> None:
    keep = Plan.load(folder / "plan.json").runs[0].keep
    assert keep == 2 if done else keep in (1, 2)
    assert [entry.name for entry in folder.iterdir()] == ["plan.json"]


def _check_export(folder: Path, done: bool) -> None:
    found = exports.which(folder)
    assert found == 1 if done else found in (0, 1)
    clean_up(folder)
    assert [entry.name for entry in folder.iterdir()] == ["net.onnx"]


def _train(folder: Path) -> None:
    fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=folder / "run", resume=True)


def _check_run(folder: Path, done: bool) -> None:
    whole = folder.parent / "whole"
    if not whole.is_dir():
        fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=whole)
    _train(folder)
    assert_same_weights(folder / "run", whole)


WRITERS = {
    "checkpoint": Writer(lambda folder: _save(folder, 1), lambda folder: _save(folder, 2), _check_checkpoint),
    "new checkpoint": Writer(
        lambda folder: None,
        lambda folder: _save(folder, 2),
        lambda folder, done: _check_checkpoint(folder, True) if done else clean_up(folder) or _empty(folder),
    ),
    "plan": Writer(
        lambda folder: _plan().save(folder / "plan.json"),
        lambda folder: _plan().edit("stages.0.0-2", keep=2).save(folder / "plan.json"),
        _check_plan,
    ),
    "export": Writer(lambda folder: exports.export(folder, 0), lambda folder: exports.export(folder, 1), _check_export),
    "train": Writer(lambda folder: None, _train, _check_run),
}


def _empty(folder: Path) -> None:
    left = sorted(entry.name for entry in folder.iterdir())
    assert left in ([], ["net"]), left  # the last call may fail after the name was given


def campaign(name: str, top: Path, every: int, mode: str) -> dict[str, int]:
    """How many calls there are, and how many faults were injected and told."""
    faults, writer = ctypes.CDLL(None), WRITERS[name]
    single_thread()
    counts = {"calls": 0, "faults": 0, "failed": 0, "told": 0}
    n = told = 0
    while True:
        folder = top / str(n)
        folder.mkdir()
        writer.start(folder)
        faults.faults_arm(ctypes.c_long(-1 if mode == "short" else n), int(mode == "full"), int(mode == "short"))
        done = True
        try:
            writer.write(folder)
        except SaveError as error:
            done = False
            told += "No space left on device" in str(error)
        finally:
            calls, hit = faults.faults_calls(), faults.faults_hit()
            faults.faults_arm(ctypes.c_long(-1), 0, 0)
        counts["calls"] = max(counts["calls"], calls)
        counts["faults"] += hit
        counts["failed"] += not done
        counts["told"] = told
        writer.check(folder, done)
        shutil.rmtree(folder)
        if not hit:
            return counts
        n += every


if __name__ == "__main__":
    for chosen in sys.argv[1].split(","):
        for how in sys.argv[4].split(","):
            place = Path(sys.argv[2]) / f"{chosen}-{how}"
            place.mkdir()
            print(json.dumps({"writer": chosen, "mode": how, **campaign(chosen, place, int(sys.argv[3]), how)}))
