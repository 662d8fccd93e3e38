"""Sweeps: many runs of one recipe with other settings, by as many processes as there are, on optuna's shared storage.

A sweep is a folder: optuna's journal `sweep.journal`, which every process appends to, and a run folder for each point.
A process takes the next point under the journal's lock and holds the lock of that point while it trains. A point that
is said to be running but whose lock is free was left by a process that died: it is taken again, and its run resumes.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pdecnn.shared.extras import require
from pdecnn.shared.files import saving
from pdecnn.shared.locks import Lock, LockedError
from pdecnn.training.recipe import Recipe
from pdecnn.training.space import Space
from pdecnn.training.trainer import FitResult

Sampler = Literal["grid", "random", "tpe"]
SAMPLERS: tuple[Sampler, ...] = ("grid", "random", "tpe")
RunPoint = Callable[[Recipe, Path], FitResult]
"""Called as `run(recipe, folder)`; trains to the end, resuming what is in the folder, and returns how it went."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep: its settings, and how its run ended."""

    params: dict[str, str]
    status: Literal["finished", "failed", "running", "waiting"]
    accuracy: float | None = None
    seconds: float | None = None
    error: str = ""


class Sweep:
    """A sweep in a folder; several processes may hold one each.

    Args:
        recipe: What all runs share.
        space: What varies.
        folder: Where everything goes; a sweep that is there already is joined.
        sampler: `"grid"` (all combinations), `"random"` or `"tpe"` (optuna's, guided by the results so far).
        trials: Number of points for the latter two.
        check: Called with the recipes of points before anything is made; what it raises ends the sweep at once.
    """

    def __init__(
        self,
        recipe: Recipe,
        space: Space,
        folder: Path,
        sampler: Sampler = "grid",
        trials: int = 20,
        check: Callable[[Recipe], object] | None = None,
    ) -> None:
        optuna = require("optuna", "search")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space.check(recipe, check)
        self.recipe, self.space, self.folder, self.sampler = recipe, space, folder, sampler
        with saving(folder):
            (folder / "claims").mkdir(parents=True, exist_ok=True)
        journal = optuna.storages.journal
        self._gate = journal.JournalFileOpenLock(str(folder / "claims" / "gate"))
        points = space.grid() if sampler == "grid" else []
        self.trials = len(points) if sampler == "grid" else trials
        kinds = {"grid": "RandomSampler", "random": "RandomSampler", "tpe": "TPESampler"}
        with self._alone():
            self._study = optuna.create_study(
                storage=journal.JournalStorage(journal.JournalFileBackend(str(folder / "sweep.journal"))),
                sampler=getattr(optuna.samplers, kinds[sampler])(),
                study_name="sweep",
                direction="maximize",
                load_if_exists=True,
            )
            self._check_same()
            known = [_fixed(trial) for trial in self._study.get_trials(deepcopy=False)]
            for params in points:
                if params not in known:
                    self._study.enqueue_trial(params)
        self._states = optuna.trial.TrialState

    def work(self, run: RunPoint) -> bool:
        """Runs points until none is left; False if a run was stopped by a signal. One that fails is noted as failed."""
        while (taken := self._take()) is not None:
            trial, params, lock = taken
            try:
                recipe = self.recipe.override(self.space.overrides(params))
                result = run(recipe, self.run_folder(params))
                if result.status == "stopped":
                    return False
            except Exception as error:  # left open, the point would be taken again and end the next process too
                trial.set_user_attr("error", _reason(error))
                self._study.tell(trial, state=self._states.FAIL)
            else:
                trial.set_user_attr("seconds", round(result.wall_time, 1))
                self._study.tell(trial, result.accuracy)
            finally:
                lock.release()
        return True

    def retry(self) -> int:
        """Puts the points that failed back into the queue and says how many they are."""
        with self._alone():
            failed = [trial for trial in self._last_tries() if trial.state == self._states.FAIL]
            for trial in failed:
                self._study.enqueue_trial(dict(trial.params), user_attrs={"again": trial.number})
        return len(failed)

    def points(self) -> list[Point]:
        """All points so far, in the order of their settings; of a point that was taken again the last try counts."""
        names: dict[str, Any] = {"COMPLETE": "finished", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
        found: dict[str, Point] = {}
        for trial in self._last_tries():
            params = _fixed(trial) or {key: str(value) for key, value in trial.params.items()}
            if len(params) < len(self.space.axes):
                continue
            attrs = trial.user_attrs
            found[str(params)] = Point(
                params, names[trial.state.name], trial.value, attrs.get("seconds"), attrs.get("error", "")
            )
        order = {axis.key: {v: i for i, v in enumerate(axis.values)} for axis in self.space.axes}
        return sorted(found.values(), key=lambda p: [order[k].get(v, _as_number(v)) for k, v in p.params.items()])

    def run_folder(self, params: dict[str, str]) -> Path:
        """The folder of a point's run, named by its settings."""
        return self.folder / _slug(params)

    def _take(self) -> tuple[Any, dict[str, str], Lock] | None:
        """The next point, ours from now on; None if none is left."""
        with self._alone():
            self._give_back_the_dead()
            trials = self._last_tries()
            waiting = any(trial.state == self._states.WAITING for trial in trials)
            if not waiting and len(trials) >= self.trials:
                return None
            trial = self._study.ask()
            params = {axis.key: axis.suggest(trial) for axis in self.space.axes}
            lock = self._lock(params)
            lock.acquire("sweep")
        return trial, params, lock

    def _last_tries(self) -> list[Any]:
        """The trials of optuna without those that another has taken the place of."""
        trials = self._study.get_trials(deepcopy=False)
        again = {trial.user_attrs.get("again") for trial in trials}
        return [trial for trial in trials if not trial.user_attrs.get("left") and trial.number not in again]

    def _give_back_the_dead(self) -> None:
        """Puts the points of processes that are gone back into the queue."""
        for trial in self._study.get_trials(deepcopy=False, states=(self._states.RUNNING,)):
            params = _fixed(trial) or {key: str(value) for key, value in trial.params.items()}
            complete = len(params) == len(self.space.axes)
            if complete:
                lock = self._lock(params)
                try:
                    lock.acquire("sweep")
                except LockedError:
                    continue
                lock.release()
            self._study._storage.set_trial_user_attr(trial._trial_id, "left", True)
            self._study.tell(trial.number, state=self._states.FAIL)
            if complete:
                self._study.enqueue_trial(dict(trial.params) or params)

    def _lock(self, params: dict[str, str]) -> Lock:
        home = self.folder / "claims" / _slug(params)
        with saving(home):
            home.mkdir(exist_ok=True)
        return Lock(home)

    def _check_same(self) -> None:
        """A ValueError if the folder holds another sweep."""
        mine = {
            "recipe": self.recipe.to_yaml(),
            "fixed": list(self.space.fixed),
            "axes": [repr(axis) for axis in self.space.axes],
            "sampler": self.sampler,
        }
        theirs = self._study.user_attrs
        for key, value in mine.items():
            if key not in theirs:
                self._study.set_user_attr(key, value)
            elif theirs[key] != value:
                raise ValueError(
                    f"sweep: {self.folder} holds a sweep with another {key}. Give the same arguments to go on with it, "
                    "or choose another --output."
                )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While the block runs, no other process takes or adds a point."""
        self._gate.acquire()
        try:
            yield
        finally:
            self._gate.release()


def _fixed(trial: Any) -> dict[str, str]:
    """The settings that were put into the queue with a trial."""
    return {key: str(value) for key, value in trial.system_attrs.get("fixed_params", {}).items()}


def _reason(error: Exception) -> str:
    """What an error says; with its kind, where that is not one of those that speak for themselves."""
    plain = isinstance(error, (OSError, ValueError, RuntimeError)) and str(error)
    return str(error) if plain else f"{type(error).__name__}: {error}".removesuffix(": ")


def _slug(params: dict[str, str]) -> str:
    """A name for a folder: the settings as one reads them, and a few letters that tell any two apart."""
    text = " ".join(f"{key}={value}" for key, value in params.items())
    readable = re.sub(r"[^\w=.,+-]+", "-", text)[:80]
    return f"{readable}-{sha256(text.encode()).hexdigest()[:6]}"


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
