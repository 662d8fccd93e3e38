"""Crashes: killed runs continue bit for bit; damaged checkpoints, signals, full disks and NaNs lose nothing."""

import csv
import json
import logging
import os
import random
import resource
import signal
import tempfile
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from training_toys import assert_same_weights, recipe, single_thread, start, tiny_data, tiny_net, weights

from pdecnn.shared.files import SaveError, write_atomic
from pdecnn.shared.locks import LockedError
from pdecnn.training import DivergedError, fit
from pdecnn.training.rundir import RunFolder


def train(folder, epochs=4, pause=0.0, optimizer="sgd"):
    single_thread()
    settings = recipe(epochs=epochs, optimizer={"name": optimizer, "lr": 0.02})
    fit(tiny_net(), tiny_data(), settings, run_dir=folder, resume=True, on_step=lambda *_: time.sleep(pause))


def train_stopping_cleanly(folder):
    single_thread()
    result = fit(tiny_net(), tiny_data(), recipe(), run_dir=folder, resume=True, on_step=lambda *_: time.sleep(0.05))
    (Path(folder) / "outcome").write_text(f"{result.status} {result.step}")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run that nobody disturbed, and how long its process took."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    start(single_thread).join()  # the server imports everything now
    began = time.monotonic()
    process = start(train, str(folder), 4, 0.04)
    process.join(100)
    assert process.exitcode == 0
    return folder, time.monotonic() - began


@pytest.mark.parametrize("seed", range(2))
def test_killed_at_random_moments_it_continues_bit_for_bit(tmp_path, uninterrupted, seed):
    whole, duration = uninterrupted
    rng, kills = random.Random(seed), 0
    while True:
        process = start(train, str(tmp_path / "run"), 4, 0.04)
        share = rng.uniform(0.1, 0.5) if kills < 2 else rng.uniform(0.2, 0.9)
        process.join(share * duration if kills < 5 else None)
        if process.exitcode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills >= 2
    assert_same_weights(tmp_path / "run", whole)
    assert losses(tmp_path / "run") == losses(whole)
    assert not list((tmp_path / "run").rglob(".tmp-*"))


def test_a_kill_between_checkpoint_and_metrics_loses_no_row(tmp_path):
    train(str(tmp_path / "run"), 2, 0.0)
    file = tmp_path / "run" / "metrics.csv"
    whole = file.read_text()
    file.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    train(str(tmp_path / "run"), 2, 0.0)
    assert file.read_text() == whole


@pytest.mark.parametrize("step", [6, 12])
def test_a_crash_between_checkpoint_and_links_moves_them_later(tmp_path, monkeypatch, step):
    def run(name):  # so slow that no epoch is better than the first
        settings = recipe(epochs=2, optimizer={"name": "sgd", "lr": 1e-9})
        fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / name, resume=True)

    run("whole")
    with monkeypatch.context() as patch:
        saved = RunFolder.saved

        def crash(self, path, **options):
            if path.name == f"step-{step:09d}":
                raise KeyboardInterrupt
            saved(self, path, **options)

        patch.setattr(RunFolder, "saved", crash)
        with pytest.raises(KeyboardInterrupt):
            run("run")
    run("run")
    for link, expected in (("last", 12), ("best", 6)):
        for name in ("whole", "run"):
            assert os.readlink(tmp_path / name / link) == f"checkpoints/step-{expected:09d}"


def losses(folder):
    rows = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    return [(row["train_loss"], row["eval_loss"], row["lr"]) for row in rows]


@pytest.mark.parametrize("optimizer", ["adamw", "rmsproptf", "lamb", "muon", "kron"])
@pytest.mark.filterwarnings("ignore:It is highly recommended to have 'opt_einsum'")
def test_every_kind_of_optimiser_state_survives(tmp_path, monkeypatch, optimizer):
    monkeypatch.setattr("timm.optim.kron.has_dynamo", False)  # compiling takes longer than the training
    settings = recipe(optimizer={"name": optimizer, "lr": 0.01}, ema_decay=None)
    fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop(step, loss, lr):
        if step == 10:
            raise StopError

    with pytest.raises(StopError):
        fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / "parts", on_step=stop)
    fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / "parts", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "parts")


def test_sigterm_saves_at_that_step_and_leaves(tmp_path):
    process = start(train_stopping_cleanly, str(tmp_path / "run"))
    while not list((tmp_path / "run").glob("checkpoints/step-*4")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGTERM)
    process.join(30)
    status, step = (tmp_path / "run/outcome").read_text().split()
    assert (process.exitcode, status) == (0, "stopped")
    assert json.loads((tmp_path / "run/last/state.json").read_text())["step"] == int(step) < 24
    settings = recipe()
    fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / "run", resume=True)
    fit(tiny_net(), tiny_data(), settings, run_dir=tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete", "unfinished"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, caplog, damage):
    fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "whole")
    fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "run")
    newest = (tmp_path / "run/last").resolve()
    file = newest / "optimizer.safetensors"
    content = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "delete":
        file.unlink()
    else:
        file = newest / "manifest.json"
        file.unlink()
    with caplog.at_level(logging.WARNING):
        fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "run", resume=True)
    assert str(newest) in caplog.text
    assert "one before it is used" in caplog.text
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(tmp_path):
    fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=tmp_path)
    for file in tmp_path.glob("checkpoints/*/manifest.json"):
        file.unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* is whole"):
        fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=tmp_path, resume=True)


def test_a_finished_run_resumes_to_the_same_result(tmp_path):
    first = fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path)
    again = fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path, resume=True)
    assert (again.status, again.step, again.accuracy) == (first.status, first.step, first.accuracy)
    assert again.history == first.history


def test_a_run_is_not_overwritten_and_not_continued_with_other_settings(tmp_path):
    fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=tmp_path)
    with pytest.raises(FileExistsError, match="holds a run already"):
        fit(tiny_net(), tiny_data(), recipe(epochs=2), run_dir=tmp_path)
    with pytest.raises(ValueError, match=r"another recipe .*epochs: 2 -> 4"):
        fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path, resume=True)


def test_two_processes_do_not_share_a_run(tmp_path):
    process = start(train, str(tmp_path / "run"), 4, 0.1)
    while not (tmp_path / "run/last").exists():
        time.sleep(0.02)
    with pytest.raises(LockedError, match=rf"run is in use by process {process.pid} on .*choose another folder"):
        fit(
            tiny_net(),
            tiny_data(),
            recipe(optimizer={"name": "sgd", "lr": 0.02}),
            run_dir=tmp_path / "run",
            resume=True,
        )
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    train(str(tmp_path / "run"))
    train(str(tmp_path / "run"))  # the lock was given back
    train(str(tmp_path / "whole"))
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_a_damaged_checkpoint_is_set_aside_not_replaced(tmp_path):
    train(str(tmp_path / "run"))
    newest = (tmp_path / "run/last").resolve()
    (newest / "config.json").write_text("{")
    train(str(tmp_path / "run"))
    assert (newest.with_name(f"damaged-{newest.name}") / "config.json").read_text() == "{"
    train(str(tmp_path / "whole"))
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def fill_the_disk(folder):
    single_thread()

    def no_more(step, loss, lr):
        if step == 14:
            resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))

    try:
        fit(tiny_net(), tiny_data(), recipe(), run_dir=folder, on_step=no_more)
    except SaveError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        (Path(folder) / "outcome").write_text(str(error))


def test_a_full_disk_is_told_and_nothing_saved_is_lost(tmp_path):
    process = start(fill_the_disk, str(tmp_path / "run"))
    process.join(60)
    outcome = (tmp_path / "run/outcome").read_text()
    assert "cannot write" in outcome
    assert "Everything saved earlier is intact" in outcome
    assert not list((tmp_path / "run").rglob(".tmp-*"))
    assert json.loads((tmp_path / "run/last/state.json").read_text())["step"] == 12
    (tmp_path / "run/outcome").unlink()
    fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "run", resume=True)
    fit(tiny_net(), tiny_data(), recipe(), run_dir=tmp_path / "whole")
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def write_as_nobody(folder, outcome):
    single_thread()
    descriptor = os.open(outcome, os.O_WRONLY)
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        fit(tiny_net(), tiny_data(), recipe(), run_dir=Path(folder) / "run")
    except SaveError as error:
        os.write(descriptor, str(error).encode())


def test_a_read_only_folder_is_told():
    with tempfile.TemporaryDirectory() as top:
        os.chmod(top, 0o755)
        folder, outcome = Path(top) / "locked", Path(top) / "outcome"
        folder.mkdir(mode=0o555)
        outcome.touch()
        process = start(write_as_nobody, str(folder), str(outcome))
        process.join(60)
        assert f"cannot write {folder}/run: Permission denied" in outcome.read_text()


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "state.json"
    write_atomic(file, "old")
    process = start(overwrite_without_space, str(file))
    process.join(60)
    assert process.exitcode == 0
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def overwrite_without_space(file):
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
    with pytest.raises(SaveError, match="File too large"):
        write_atomic(Path(file), "x" * 1000)


class Explosive(nn.Module):
    """Scales by a weight, and by infinity right after a step that moved the weight by more than `limit`."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.register_buffer("before", torch.ones(()))
        self.limit, self.longest = limit, 0.0

    def forward(self, x):
        moved = (self.weight - self.before).abs().item()
        self.longest = max(self.longest, moved)
        if moved <= self.limit:
            self.before.copy_(self.weight.detach())
        return x * self.weight * (torch.inf if moved > self.limit else 1.0)


def explosive_net(limit):
    net = tiny_net()
    net.insert(1, Explosive(limit))
    return net


@pytest.fixture(scope="module")
def limit():
    """Steps at the full learning rate go beyond it; those at half the rate should not."""
    net = explosive_net(torch.inf)
    fit(net, tiny_data(), recipe())
    return 0.6 * net[1].longest


def test_a_nan_stops_with_step_lr_and_module(tmp_path, limit):
    message = r"loss became (nan|inf) at step \d+ \(epoch \d\), lr 0\.\d+.*module '1' \(Explosive\)"
    with pytest.raises(DivergedError, match=message):
        fit(explosive_net(limit), tiny_data(), recipe(), run_dir=tmp_path)
    assert all(torch.isfinite(value).all() for value in weights(tmp_path).values())


def test_on_nan_resume_goes_back_with_a_smaller_lr(tmp_path, limit):
    result = fit(explosive_net(limit), tiny_data(), recipe(), run_dir=tmp_path, on_nan="resume")
    assert result.status == "finished"
    scales = [r["lr_scale"] for r in result.rollbacks]
    assert len(scales) >= 1
    assert scales == [0.5 ** (i + 1) for i in range(len(scales))]
    assert all(r["to"] <= r["step"] for r in result.rollbacks)
    assert result.history[-1]["epoch"] == 4


def test_on_nan_resume_gives_up_after_five_attempts(tmp_path):
    class Hopeless(nn.Module):
        def forward(self, x):
            return x * torch.nan

    net = tiny_net()
    net.append(Hopeless())
    with pytest.raises(DivergedError, match="module '6' \\(Hopeless\\)"):
        fit(net, tiny_data(), recipe(), run_dir=tmp_path, on_nan="resume")


def test_on_nan_resume_needs_a_folder():
    with pytest.raises(ValueError, match="needs run_dir"):
        fit(tiny_net(), tiny_data(), recipe(), on_nan="resume")
