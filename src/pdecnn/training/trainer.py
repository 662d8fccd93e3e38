"""One run: its state, its steps, its bookkeeping and its checkpoints."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pdecnn.layers.depthwise import use_native
from pdecnn.models.build import timm_entries
from pdecnn.shared.reading import FileError, check_keys, guarded
from pdecnn.shared.trees import count, is_images, moved
from pdecnn.training.checkpoint import pack, read_json, save_checkpoint, unpack
from pdecnn.training.choice import way_of
from pdecnn.training.diverged import DivergedError, diverged_loss, first_bad_module
from pdecnn.training.evaluation import Metrics, evaluate
from pdecnn.training.imitation import Imitation, Score
from pdecnn.training.interrupt import stop_signals
from pdecnn.training.loaders import Loaders
from pdecnn.training.objective import Objective
from pdecnn.training.optim import make_optimizer, make_schedule
from pdecnn.training.processes import Processes
from pdecnn.training.progress import Reporter
from pdecnn.training.recipe import Recipe
from pdecnn.training.rundir import RunFolder, environment, read_state
from pdecnn.training.sandwich import Sandwich
from pdecnn.training.seeding import seed_everything
from pdecnn.training.tensors import join_state, non_finite, split_state

log = logging.getLogger(__name__)

MAX_ROLLBACKS = 5
ROLLBACK_LR = 0.5


@dataclass
class State:
    """Where a run is: what a checkpoint keeps beside weights and optimiser."""

    step: int = 0
    lr_scale: float = 1.0
    loss_sum: float = 0.0
    correct: int = 0
    seen: int = 0
    epoch_time: float = 0.0
    wall_time: float = 0.0
    best: float = -1.0
    history: list[dict[str, Any]] = field(default_factory=list)
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def from_dict(cls, values: dict[str, Any], where: str) -> "State":
        """The state that a file holds; a FileError names a key that is unknown, missing or of another type."""
        known = {name: (int, float) if isinstance(v, float) else type(v) for name, v in asdict(cls()).items()}
        check_keys(values, known, tuple(known), where)
        if min(values["step"], values["correct"], values["seen"]) < 0:
            raise FileError(f"{where}: step, correct and seen must not be negative.")
        return cls(**values)


@dataclass(frozen=True)
class FitResult:
    """How a run ended: `finished`, or `stopped` by a signal after saving."""

    status: Literal["finished", "stopped"]
    step: int
    history: list[dict[str, Any]]
    metrics: Metrics | Score | None
    wall_time: float
    rollbacks: list[dict[str, Any]]

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last evaluation, in per cent, or the metric of the user's own."""
        return self.metrics.accuracy if self.metrics else None


class Trainer:
    """One run. `fit` is the way in."""

    def __init__(
        self,
        model: nn.Module,
        loaders: Loaders,
        recipe: Recipe,
        objective: Objective,
        accelerator: Any,
        run: RunFolder | None,
        reporter: Reporter,
        on_step: Callable[[int, float, float], None] | None,
    ) -> None:
        from timm.utils import ModelEmaV3

        self.loaders, self.recipe, self.objective = loaders, recipe, objective
        self.accelerator, self.run, self.on_step = accelerator, run, on_step
        self.reporter = reporter if accelerator.is_main_process else Reporter()
        self.model_config: dict[str, Any] = {}
        self.model = model.to(accelerator.device)
        self.sandwich = Sandwich(self.model, recipe) if recipe.steps else None
        self.way = way_of(recipe)
        compiled = self.way.apply(self.model)
        self.ema = ModelEmaV3(self.model, recipe.ema_decay, use_warmup=True) if recipe.ema_decay else None
        optimizer = make_optimizer(self.model, recipe)
        self.schedule = make_schedule(optimizer, recipe, len(loaders.train))
        self.forward, self.optimizer = accelerator.prepare(compiled, optimizer)
        self.state = State()
        self.metrics: Metrics | Score | None = None
        self.own = objective if isinstance(objective, Imitation) else None
        self.last_loss: float | None = None
        self.board: Any = None

    @property
    def total_steps(self) -> int:
        """Number of steps of the whole run."""
        return self.recipe.epochs * len(self.loaders.train)

    @property
    def inference_model(self) -> nn.Module:
        """The model whose weights count: the moving average if there is one."""
        return self.ema.module if self.ema else self.model

    def run_to_end(self, on_nan: str) -> FitResult:
        """Trains until the last step, a signal, or an error."""
        self.reporter.start(self._name(), self.recipe.epochs, len(self.loaders.train), self.state.step)
        self.board = self._open_board()
        if self.run and not self.state.step:
            self.save()
        with stop_signals() as stopping:
            while self.state.step < self.total_steps and not self._any(stopping.is_set()):
                try:
                    self.run_epoch(stopping)
                except DivergedError as error:
                    if on_nan == "stop" or len(self.state.rollbacks) >= MAX_ROLLBACKS:
                        raise
                    self.roll_back(error)
        return self.finish("finished" if self.state.step >= self.total_steps else "stopped")

    def run_epoch(self, stopping: threading.Event) -> None:
        """Makes the steps of the current epoch that are still to be made, then its bookkeeping."""
        steps, state = len(self.loaders.train), self.state
        epoch, start = divmod(state.step, steps)
        self.model.train()
        if self.recipe.frozen_norms:
            for norm in (m for m in self.model.modules() if isinstance(m, _BatchNorm)):
                norm.eval()
        self._ramp_drop_path(epoch)
        began = time.monotonic()
        for x, y in self.loaders.train.batches(epoch, start):
            self.train_step(x, y, epoch)
            if state.step % steps and self._any(stopping.is_set()):
                break
            every = self.recipe.checkpoint_every
            if every and state.step % steps and state.step % every == 0:
                began = self._clock(began)
                self.save()
        self._clock(began)
        if state.step % steps:
            self.save()
        else:
            self.end_epoch(epoch + 1)

    def train_step(self, x: Any, y: Any, epoch: int) -> None:
        """One step of the optimiser."""
        state, recipe, device = self.state, self.recipe, self.accelerator.device
        n, x, y = count(x, is_images(x)), moved(x, device), moved(y, device)
        x = self.way.ordered(x) if isinstance(x, Tensor) else x
        seed_everything(recipe.seed, "step", state.step, self.accelerator.process_index)
        lr = self.set_lr(state.step)
        value, logits = self.backward(x, y, epoch, lr)
        if recipe.clip_grad:
            self.accelerator.clip_grad_norm_(self.model.parameters(), recipe.clip_grad)
        self.optimizer.step()
        self.optimizer.zero_grad()
        state.step += 1
        if self.ema:
            self.ema.update(self.model, step=state.step)
        self.last_loss = value
        state.loss_sum += value * n
        state.correct += 0 if logits is None else int((logits.detach().argmax(dim=1) == y).sum())
        state.seen += n
        self.reporter.step(state.step, value, lr)
        if self.on_step:
            self.on_step(state.step, value, lr)

    def backward(self, x: Any, y: Any, epoch: int, lr: float) -> tuple[float, Tensor | None]:
        """Gradients of a batch, its loss and its logits; for a range of K those of the largest, gradients of all."""
        answers: list[tuple[float, Tensor | None]] = []
        with closing(self._passes(x, y)) as passes:
            for loss, logits in passes:
                value = self._mean(loss.detach())
                if not math.isfinite(value):
                    where = first_bad_module(self.model, x)
                    raise diverged_loss(value, self.state.step, epoch + 1, self.last_loss, lr, where)
                self.accelerator.backward(loss)
                answers.append((value, logits))
        return answers[0]

    def _passes(self, x: Any, y: Any) -> Generator[tuple[Tensor, Tensor | None], None, None]:
        if self.sandwich is None:
            yield self.objective(self.forward, x, y)
        else:
            yield from self.sandwich.losses(self.objective, self.forward, x, y, self.state.step)

    def set_lr(self, step: int) -> float:
        """Sets and returns the learning rate of a step."""
        self.schedule.step_update(step)
        groups = self.optimizer.param_groups
        for group in groups:
            group["lr"] *= self.state.lr_scale
        return float(groups[0]["lr"])

    def end_epoch(self, epoch: int) -> None:
        """Evaluates when it is time to, writes the metrics and saves."""
        state, every = self.state, self.recipe.evaluate_every
        due = epoch == self.recipe.epochs or (every > 0 and epoch % every == 0)
        began = time.monotonic()
        if due and self.sandwich:
            self.sandwich.find_statistics(self.inference_model, self.loaders)
        self.metrics = self.evaluate() if due else None
        state.wall_time += time.monotonic() - began
        self._check_finite()
        row = {
            "epoch": epoch,
            "step": state.step,
            "train_loss": state.loss_sum / state.seen,
            "train_accuracy": None if self.own else 100 * self._sum(state.correct) / self._sum(state.seen),
            "eval_loss": self.metrics.loss if self.metrics else None,
            "eval_accuracy": self.metrics.accuracy if self.metrics else None,
            "lr": float(self.optimizer.param_groups[0]["lr"]),
            "seconds": round(state.epoch_time, 3),
            **({"metric": self.own.metric_name} if self.own else {}),
        }
        state.history.append(row)
        state.loss_sum, state.correct, state.seen, state.epoch_time = 0.0, 0, 0, 0.0
        best = self.metrics is not None and self._is_best(self.metrics.accuracy)
        if self.metrics and best:
            state.best = self.metrics.accuracy
        self.save(best=best)
        self.reporter.epoch(row)
        self._log_board(row)

    def _is_best(self, value: float) -> bool:
        first = sum(row["eval_accuracy"] is not None for row in self.state.history) < 2
        larger = self.own is None or self.own.higher_is_better
        return first or (value > self.state.best if larger else value < self.state.best)

    def evaluate(self) -> Metrics | Score | None:
        """Evaluates the inference model on the evaluation split, if there is one."""
        a = self.accelerator
        if self.loaders.evaluation is None:
            return None
        reduce = (lambda t: a.reduce(t, "sum")) if a.num_processes > 1 else None
        if a.num_processes > 1:  # the statistics of the batch norms are those that will be saved
            Processes().share(self.inference_model)
        if self.own:
            places = {"rank": a.process_index, "world_size": a.num_processes, "reduce": reduce}
            return self.own.evaluate(self.inference_model, self.loaders.evaluation, **places)
        return evaluate(
            self.inference_model,
            self.loaders.evaluation,
            num_classes=self.loaders.num_classes or None,
            precision=self.recipe.precision,
            rank=a.process_index,
            world_size=a.num_processes,
            reduce=reduce,
        )

    def save(self, *, best: bool = False) -> None:
        """Writes a checkpoint of this moment."""
        if self.run is None:
            return
        self._check_finite()
        if self.accelerator.is_main_process:
            path = self.run.checkpoint_path(self.state.step)
            save_checkpoint(path, self.inference_model, self._config(), extra=self._training_files())
            self.run.saved(path, best=best, keep=self.recipe.keep_checkpoints)
            self.run.write_history(self.state.history)
        self.accelerator.wait_for_everyone()

    def _check_finite(self) -> None:
        bad = non_finite(self.model.state_dict())
        if bad:
            step, lr = self.state.step, float(self.optimizer.param_groups[0]["lr"])
            where = f"The parameter {bad!r} is not finite."
            raise diverged_loss(math.nan, step, step // len(self.loaders.train) + 1, self.last_loss, lr, where)

    def _training_files(self) -> dict[str, bytes]:
        tensors, values = split_state(self.optimizer.state_dict())
        files = {
            "optimizer.safetensors": pack(tensors),
            "optimizer.json": json.dumps(values).encode(),
            "state.json": json.dumps(asdict(self.state), indent=1).encode(),
        }
        if self.ema:
            files["raw.safetensors"] = pack(self.model.state_dict())
        if self.accelerator.scaler is not None:
            files["scaler.json"] = json.dumps(self.accelerator.scaler.state_dict()).encode()
        return files

    def restore(self, *, required: bool = False) -> None:
        """Goes to the newest whole checkpoint, if there is one."""
        path = self.run.newest() if self.run else None
        if path is None:
            if required or (self.run and any(self.run.checkpoints.glob("step-*"))):
                raise ValueError(f"train: no checkpoint in {self.run and self.run.checkpoints} is whole; start anew.")
            return
        self.inference_model.load_state_dict(unpack(path / "model.safetensors"))
        if self.ema:
            self.model.load_state_dict(unpack(path / "raw.safetensors"))
        guarded(f"train: the optimiser state in {path} is not that of this run", lambda: self._restore_optimizer(path))
        self.state = State.from_dict(read_state(path), f"train: {path / 'state.json'}")
        if self.run and self.accelerator.is_main_process:  # a kill may have come between the checkpoint and its links
            self.run.link(path, best=self.state.step == self._best_step())

    def _best_step(self) -> int | None:
        scores = [(row["eval_accuracy"], row["step"]) for row in self.state.history]
        return next((step for value, step in scores if value is not None and value == self.state.best), None)

    def _restore_optimizer(self, path: Path) -> None:
        values = read_json(path / "optimizer.json", nan_in=("state", "param_groups", "extra"))
        self.optimizer.load_state_dict(join_state(unpack(path / "optimizer.safetensors"), values))
        if self.accelerator.scaler is not None and (path / "scaler.json").is_file():
            self.accelerator.scaler.load_state_dict(read_json(path / "scaler.json"))

    def roll_back(self, error: DivergedError) -> None:
        """Returns to the last good checkpoint and halves the learning rate from there on."""
        rollbacks, scale = self.state.rollbacks, self.state.lr_scale
        self.optimizer.zero_grad()
        self.restore(required=True)
        self.state.lr_scale = scale * ROLLBACK_LR
        self.state.rollbacks = [
            *rollbacks,
            {"step": error.step, "to": self.state.step, "lr_scale": self.state.lr_scale},
        ]
        self.reporter.message(f"{error} Going back to step {self.state.step} with lr x {self.state.lr_scale:g}.")

    def finish(self, status: Literal["finished", "stopped"]) -> FitResult:
        """Writes the result of a finished run and hands the averaged weights to the model."""
        if status == "finished":
            if self.metrics is None:  # resumed after its end
                self.metrics = self.evaluate()
            if self.ema:
                self.model.load_state_dict(self.ema.module.state_dict())
            if self.run and self.accelerator.is_main_process:
                self.run.write_history(self.state.history)  # a kill may have come between the checkpoint and this
                self.run.write_result(self._result(), self.metrics, self.loaders.classes)
        self.accelerator.wait_for_everyone()
        s = self.state
        return FitResult(status, s.step, s.history, self.metrics, s.wall_time, s.rollbacks)

    def close(self) -> None:
        """Undoes what accelerate did to the model and ends the logs."""
        self.accelerator.unwrap_model(self.forward, keep_fp32_wrapper=False)
        use_native(self.model, wanted=False)
        self.reporter.close()
        if self.board:
            self.board.close()

    def _config(self) -> dict[str, Any]:
        metrics = self.metrics
        done = {"loss": metrics.loss, "correct": metrics.correct, "total": metrics.total} if metrics else {}
        if metrics:
            done["accuracy"] = metrics.accuracy
        return {
            "model": self.model_config,
            **timm_entries(self.model, self.model_config, self.loaders.input),
            "classes": list(self.loaders.classes),
            "input": self.loaders.input,
            "recipe": self.recipe.model_dump(mode="json"),
            "metrics": done,
            **environment(),
        }

    def _result(self) -> dict[str, Any]:
        return {
            "model": self._name(),
            "dataset": self.recipe.data.name,
            "accuracy": self.metrics.accuracy if self.metrics else None,
            "seed": self.recipe.seed,
            "epochs": self.recipe.epochs,
            "curve": self.state.history,
            "wall_time_s": round(self.state.wall_time, 1),
            "rollbacks": self.state.rollbacks,
            "recipe": self.recipe.model_dump(mode="json"),
            **environment(),
        }

    def _name(self) -> str:
        return str(self.model_config.get("name") or type(self.model).__name__)

    def _clock(self, began: float) -> float:
        now = time.monotonic()
        self.state.epoch_time += now - began
        self.state.wall_time += now - began
        return now

    def _mean(self, loss: Tensor) -> float:
        if self.accelerator.num_processes > 1:
            loss = self.accelerator.reduce(loss, "mean")
        return loss.item()

    def _sum(self, count: int) -> int:
        if self.accelerator.num_processes == 1:
            return count
        return int(self.accelerator.reduce(torch.tensor(count, device=self.accelerator.device), "sum"))

    def _any(self, flag: bool) -> bool:
        """Whether the flag is up in any process: all must leave at the same step."""
        return bool(self._sum(int(flag)))

    def _ramp_drop_path(self, epoch: int) -> None:
        if not self.recipe.drop_path_ramp:
            return
        for module in self.model.modules():
            if isinstance(getattr(module, "drop_prob", None), float):
                full = module.__dict__.setdefault("_full_drop_prob", module.drop_prob)
                module.drop_prob = full * epoch / self.recipe.epochs

    def _open_board(self) -> Any:
        if self.run is None or not self.recipe.tensorboard or not self.accelerator.is_main_process:
            return None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            log.info('No TensorBoard log: tensorboard is missing; pip install "pdecnn[train]".')
            return None
        return SummaryWriter(str(self.run.path / "tensorboard"), purge_step=self.state.step)  # type: ignore[no-untyped-call]

    def _log_board(self, row: dict[str, Any]) -> None:
        if self.board:
            for name, value in row.items():
                if name not in ("epoch", "step") and value is not None:
                    self.board.add_scalar(name.replace("_", "/", 1), value, row["step"])
