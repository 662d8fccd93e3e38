"""What the studio computes and draws, without Gradio or a browser."""

import base64
import dataclasses
import io
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from typer.testing import CliRunner

from pdecnn.cli import app
from pdecnn.condensation.plan import plan
from pdecnn.layers import GlobalLayer
from pdecnn.symmetry import Group
from pdecnn.training.datasets import FASHION_CLASSES, load_dataset
from pdecnn.training.inputs import Input
from pdecnn.training.own import in_memory
from pdecnn.viz.studio import drawing, inside, jobs, nets, pictures, planning, runs, serving, strip, turning, worker
from pdecnn.viz.studio.drawing import Chart, Series

ROOT = Path(__file__).parents[2]
GREY, COLOUR = Input((1, 28, 28), (0.5,), (0.25,)), Input((3, 8, 8), (0.5,) * 3, (0.25,) * 3)


@pytest.fixture(scope="module")
def example():
    return planning.start(nets.open_net("fashion_resnet32.fashion_mini"))


@pytest.fixture(scope="module")
def looked():
    net = nets.open_net("cifar_resnet_tiny_global.cifar10")
    return inside.look(net, pictures.to_input(nets.pick(net, 0), net.wanted))


# pictures that visitors bring


def test_an_upload_becomes_an_input_with_the_nets_statistics(tmp_path):
    Image.new("RGB", (40, 20), (255, 0, 127)).save(tmp_path / "a.png")
    x = pictures.to_input(pictures.read_upload(tmp_path / "a.png"), COLOUR)
    assert x.shape == (1, 3, 8, 8)
    assert x[0, :, 3, 3].tolist() == pytest.approx([2.0, -2.0, (127 / 255 - 0.5) / 0.25])
    assert (pictures.to_picture(x, COLOUR)[4, 4] == (255, 0, 127)).all()


@pytest.mark.parametrize(
    "content, says",
    [
        (b"\x80\x04\x95import os", "is not an image that can be read"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 64, "is not an image that can be read"),
        (b"", "is not an image that can be read"),
    ],
)
def test_a_wrong_upload_gives_a_sentence(tmp_path, content, says):
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(ValueError, match=says):
        pictures.read_upload(tmp_path / "a.png")


def test_uploads_are_limited_in_bytes_and_pixels(tmp_path, monkeypatch):
    Image.new("1", (5000, 4000)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match="20 million pixels; an image may have 16"):
        pictures.read_upload(tmp_path / "wide.png")
    monkeypatch.setattr(pictures, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="an image may have 0 MB"):
        pictures.read_upload(tmp_path / "wide.png")


def test_a_drawing_is_centred_for_digits_and_an_empty_pad_is_told():
    ink = np.zeros((100, 100, 4), np.uint8)
    ink[10:50, 20:30] = (0, 0, 0, 255)
    drawn = {"layers": [ink], "composite": ink}
    digit = np.asarray(pictures.read_drawing(drawn, bright=True))
    rows, columns = np.nonzero(digit)
    assert digit.shape == (56, 56)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 47, 23, 32)
    assert pictures.to_input(pictures.read_drawing(drawn, bright=True), GREY).shape == (1, 1, 28, 28)
    assert np.asarray(pictures.read_drawing(drawn, bright=False))[0, 0].tolist() == [255, 255, 255]
    with pytest.raises(ValueError, match="The pad is empty"):
        pictures.read_drawing({"layers": [np.zeros_like(ink)], "composite": ink}, bright=True)
    with pytest.raises(ValueError, match="The pad is empty"):
        pictures.read_drawing(None, bright=True)


# nets by name


def test_a_net_knows_its_input_its_classes_and_its_images():
    net = nets.open_net("mnist_toy_global.mnist")
    assert net.wanted.shape == (1, 28, 28)
    assert (net.label(3), net.samples) == ("3", "mnist")
    assert nets.pick(net, 0).size == (28, 28)
    assert len(nets.gallery(net)) == nets.SAMPLES
    with pytest.raises(ValueError, match="There are images 0 to 199"):
        nets.pick(net, 200)
    assert nets.open_net("cifar_resnet32", "3,16,16").wanted.shape == (3, 16, 16)
    assert nets.open_net("cifar_resnet32").label(3) == "class 3"  # random weights know no cats


@pytest.mark.parametrize(
    "name, size, says",
    [
        ("", "", "Name a model"),
        ("resnet19", "", "no model named 'resnet19'"),
        ("cifar_resnet32", "3,32", "three numbers C,H,W"),
        ("cifar_resnet32", "3,32,99999", "of at most 1024"),
        ("no_such_module:make", "", "cannot import"),
    ],
)
def test_a_wrong_name_gives_a_sentence(name, size, says):
    with pytest.raises(ValueError, match=says):
        nets.open_net(name, size)


def test_a_page_that_others_reach_runs_no_code_and_reads_no_folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    for name in ("os:getcwd", "hf-hub:timm/resnet18"):
        with pytest.raises(ValueError, match="names of timm and torchvision only"):
            nets.open_net(name, local=False)
    with pytest.raises(ValueError, match="folders below its own only"):
        nets.open_net(str(tmp_path), local=False)
    assert nets.open_net("mnist_toy_conv", local=False).wanted.shape == (1, 28, 28)


@pytest.mark.parametrize(
    "given, local",
    [
        ({}, True),
        ({"host": "localhost"}, True),
        ({"host": "0.0.0.0"}, False),
        ({"share": True}, False),
        ({"host": "pc"}, False),
    ],
)
def test_who_can_reach_the_page(given, local):
    assert serving.Options(**given).local is local


# condense


def test_the_strip_has_every_block_once_in_order_and_says_what_becomes_of_it(example):
    cells = example.cells
    assert [c.path for c in cells][:3] == ["stem.conv", "stages.0.0", "stages.0.1"]
    assert [(c.run, c.place) for c in cells[1:6]] == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)]
    assert sum(c.params for c in cells) == example.plan.before.params
    html = strip.draw(cells, example.plan.runs)
    assert html.count("block gone") == 9
    assert html.count("block kept") == 6
    assert html.count("block new") == 3
    assert "<small>28x28</small>" in html


def test_what_was_left_alone_is_grey_with_its_reason():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(*(_block(8) for _ in range(3)))
            self.b = nn.Sequential(_block(8, 2), _block(8))

        def forward(self, x):
            return self.b(self.a(x)).mean((2, 3))

    net, x = Net().eval(), torch.zeros(1, 8, 16, 16)
    made = plan(net, x, ignore="b.0-1")
    cells = {c.path: c for c in strip.cells(net, x, made)}
    assert cells["a.1"].run == 0
    assert cells["b.0"].reason == cells["b.1"].reason == "ignored, as asked"
    html = strip.draw(list(cells.values()), made.runs)
    assert html.count("block alone") == 2
    assert "Left alone: ignored, as asked." in html


def _block(channels, stride=1):
    convs = [
        nn.Conv2d(channels, channels, 3, stride, 1),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*convs)


def test_an_edit_changes_the_plan_and_its_costs(example):
    path = example.plan.runs[0].path
    fewer = planning.edit(example, path, keep=1, replacement="pde", K=1)
    more = planning.edit(example, path, keep=5, replacement="pde", K=1)
    assert fewer.plan.after.params < example.plan.after.params < more.plan.after.params
    assert not more.plan.runs[0].condenses
    paper = planning.edit(example, path, keep=1, replacement="paper", K=7).plan.runs[0]
    assert (paper.replacement, paper.K) == ("paper", 7)
    assert example.plan.runs[0].keep == 2
    for keep, K, says in ((1, 17, "at most 16 steps"), (6, 1, "keep must be from 1 to 5")):
        with pytest.raises(ValueError, match=says):
            planning.edit(example, path, keep=keep, replacement="pde", K=K)


def test_milliseconds_are_the_sum_of_parts():
    run = SimpleNamespace(path="a", condenses=True, units=("0", "1", "2"), removed=("1", "2"), replacement="pde", K=3)
    parts = planning.Parts(None, 10.0, {"a": (3.0, 2.0, 1.0)}, {"a": {"pde": 0.5, "pde K=1": 0.25, "nothing": 0.0}})
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(1 - (3 - 0.5) / 10)
    run.K = 1
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(1 - (3 - 0.25) / 10)
    run.replacement = "nothing"
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == pytest.approx(0.7)
    run.condenses = False
    assert planning.predict(SimpleNamespace(runs=[run]), parts) == 1


def test_parts_are_measured_and_times_belong_to_their_plan(example):
    parts = planning.measure_parts(example)
    for run in example.plan.runs:
        assert len(parts.blocks[run.path]) == 5
        assert set(parts.layers[run.path]) == {*planning.choices(), "pde K=1", "paper K=1"}
    layers = {path: dict.fromkeys(names, 0.5) for path, names in parts.layers.items()}
    even = dataclasses.replace(parts, ms=10.0, blocks=dict.fromkeys(parts.blocks, [1.0] * 5), layers=layers)
    assert planning.predict(example.plan, even) == pytest.approx(1 - 3 * (3 - 0.5) / 10)  # two of five blocks stay
    assert planning.costs(example).count("being measured") == 2
    measured = planning.Measured(example.plan, 4.0, 2.0)
    assert "being measured" not in planning.costs(example, parts, measured)
    other = planning.edit(example, example.plan.runs[0].path, keep=1, replacement="pde", K=1)
    assert planning.costs(other, parts, measured).count("being measured") == 1


@pytest.mark.slow
def test_a_job_can_be_cancelled_continued_and_leaves_its_files(example, tmp_path):
    images = tmp_path / "images"
    save_images(images)
    job = jobs.Job(example, str(images), epochs=2, folder=tmp_path)
    job.start()
    while job.running and not job.status.history:
        time.sleep(0.05)
    job.cancel()
    status = jobs.wait_for(job, 300)
    assert status.state == "cancelled", status.text
    assert "Continue goes on" in jobs.progress_bar(status)
    status = jobs.wait_for(job.start(), 600)
    assert status.state == "finished", status.text
    assert [row["epoch"] for row in status.history] == [1, 2]
    names = [Path(path).name for path in status.files]
    assert names == ["student.zip", "student.onnx", "student.c", "student.h", "report.html"]
    assert all(Path(path).is_file() for path in status.files)
    with zipfile.ZipFile(tmp_path / "student.zip") as packed:
        held = {Path(name).name for name in packed.namelist()}
        assert held == {"README.md", "config.json", "manifest.json", "model.safetensors"}
    assert status.samples.count("<figure>") == worker.SHOWN
    assert "accuracy, %" in jobs.outcome(status)
    again = nets.open_net(str(tmp_path))  # what was made can be looked into
    assert len(inside.pde_layers(again.model)) == 3
    assert inside.look(again, torch.zeros(1, *again.wanted.shape)).layers[0].states[0].shape == (8, 28, 28)


def save_images(home):
    data = load_dataset("fashion-mini")
    for split, part in (("train", data.train), ("val", data.test)):
        for number in range(10):
            folder = home / split / str(number)
            folder.mkdir(parents=True)
            for i, x in enumerate(part.x[part.y == number][:7]):
                Image.fromarray(x[0].numpy()).save(folder / f"{i}.png")


def test_the_status_follows_what_the_process_tells():
    status = jobs.Status()
    status.take({"text": "distilling", "done": 0, "total": 8, "epochs": 0})
    for epoch in (1, 2):
        status.take({"epoch": {"epoch": epoch, "train_accuracy": 50.0 * epoch, "eval_accuracy": 40.0}, "line": "a"})
    assert "distilling (0 of 8)" in jobs.progress_bar(status)
    assert jobs.curve(status).count('class="point"') == 4
    assert jobs.outcome(status) == ""
    status.take({"epochs": 1})  # continued from the first epoch
    assert [row["epoch"] for row in status.history] == [1]
    status.take({"state": "finished", "text": "finished", "rows": [["accuracy, %", "1", "2", "+1"]], "worse": ["<x>"]})
    assert 'aria-valuenow="100"' in jobs.progress_bar(status)
    assert "<li>&lt;x&gt;</li>" in jobs.outcome(status)


def test_a_process_that_fails_says_so_in_a_sentence(tmp_path, capsys):
    (tmp_path / worker.SETTINGS).write_text('{"name": "resnet19", "size": ""}')
    out = sys.stdout
    try:
        assert worker.main(str(tmp_path)) == 0
    finally:
        sys.stdout = out
    event = json.loads(capsys.readouterr().out)
    assert event["state"] == "failed"
    assert "no model named 'resnet19'" in event["text"]


def test_both_answers_are_under_each_picture_and_differences_come_first(example):
    net = example.net
    data = in_memory(load_dataset("fashion-mini").limit(64, 40), 32, 0)
    html = worker.both_answers(net.model, example.plan.apply(net.model), data, net.wanted)
    assert html.count("<figure>") == worker.SHOWN
    first = html.partition("<figcaption>")[2].partition("</figcaption>")[0]
    before, after = first.partition(": before ")[2].split(", after ")
    assert before != after
    assert before in FASHION_CLASSES
    same = worker.both_answers(net.model, net.model, data, net.wanted)
    assert "Of 40 images both give the same answer to 100.0 %." in same


def test_a_job_that_cannot_be_is_refused_in_a_sentence(example, tmp_path):
    with pytest.raises(ValueError, match="no folder '/no/such'"):
        jobs.Job(example, "/no/such")
    whole = example
    for run in example.plan.runs:
        whole = planning.edit(whole, run.path, keep=5, replacement="pde", K=1)
    with pytest.raises(ValueError, match="keeps every block"):
        jobs.Job(whole)
    with pytest.raises(ValueError, match="The images of fashion-mini are 1x28x28, and this net takes 3x8x8"):
        worker.open_images("fashion-mini", COLOUR, 0)
    jobs.ONE_AT_A_TIME.acquire()  # as if another visitor's job ran
    try:
        waiting = jobs.Job(example, folder=tmp_path).start()
        assert waiting.status.text == jobs.WAITING
        with pytest.raises(ValueError, match="running already"):
            waiting.start()
        waiting.close()
    finally:
        jobs.ONE_AT_A_TIME.release()
    assert waiting.status.state == "cancelled"


# look inside


def test_the_states_are_those_of_the_layer_and_end_in_its_output(looked):
    view = looked.layers[0]
    layer = inside.pde_layers(looked.model)[view.path]
    assert isinstance(layer, GlobalLayer)
    own = layer.trajectory(view.given)
    assert len(own) == view.K + 1
    assert all(torch.equal(a[0], b) for a, b in zip(own, view.states, strict=False))
    u, v, D_x, _ = layer.coefficients(own[0])
    assert torch.equal(view.u, torch.as_tensor(u).expand_as(own[0])[0])
    assert torch.equal(view.v, torch.as_tensor(v).expand_as(own[0])[0])
    assert torch.equal(view.D_x, torch.as_tensor(D_x).expand_as(own[0])[0])
    found = layer.stability(view.given)
    assert float(view.courant.max()) == pytest.approx(found.cfl, rel=1e-5)
    assert float(view.unstable.double().mean()) == pytest.approx(found.von_neumann_fraction, rel=1e-5)


def test_confidence_against_k_is_that_of_the_net_with_k_steps(looked):
    with torch.no_grad():
        own = looked.net.model(looked.x).softmax(1)[0]
    assert torch.allclose(looked.probabilities, own)
    answer = next(a for a in looked.answers if looked.steps == a.K)
    assert (answer.best, answer.confidence) == (int(own.argmax()), pytest.approx(float(own.max())))
    assert answer.confidence == answer.of_own
    assert {m.K for m in inside.pde_layers(looked.model).values()} == {looked.steps}  # restored
    assert "It says cat" in inside.verdict(looked)


def test_a_pixel_depends_on_what_k_steps_can_reach(looked):
    few, image = inside.reach(looked, 0, 16, 16, 1)
    more, _ = inside.reach(looked, 0, 16, 16, 3)
    y, x = few.nonzero().T
    assert ((y - 16).abs() + (x - 16).abs()).max() <= 3  # a step, and the stencil of its coefficients
    assert (few > 0).sum() < (more > 0).sum() < more.numel()
    assert image.shape == (32, 32)
    assert few.argmax() == 16 * 32 + 16
    with pytest.raises(ValueError, match="0 to 31 across"):
        inside.reach(looked, 0, 16, 32, 1)


def test_all_is_drawn_and_unstable_pixels_are_framed(looked):
    view = looked.layers[0]
    drawn = inside.fields(view, -1)
    framed = int(view.unstable.any(0).sum())
    assert drawn.count("<figure>") == 4
    assert drawn.count("h.76v.76") == framed > 0
    assert f"{framed} of 1024 pixels framed" in drawn
    assert "h^2" in inside.state(view, 0, 2)
    assert inside.state(view, -1, 2) != inside.state(view, -1, 3)
    assert inside.reach_pictures(looked, 2, 3, 3, 2).count("<figure>") == 2
    assert inside.confidence_chart(looked).count('class="point"') in (inside.MOST, 2 * inside.MOST)


def test_a_net_without_such_layers_is_told():
    with pytest.raises(ValueError, match="cifar_resnet32 has no Global layer"):
        inside.look(nets.open_net("cifar_resnet32"), torch.zeros(1, 3, 32, 32))


def test_transport_grows_where_its_spectrum_says():
    from pdecnn.layers.transport import Transport

    layer = Transport(2)
    with torch.no_grad():
        layer.velocity.copy_(torch.tensor([[0.2, 1.5], [0.0, 0.0]]))
        layer.diffusion.fill_(0.2)
    assert inside._growing(layer).tolist() == [False, True]


# symmetry


@pytest.mark.parametrize("group", list(Group))
def test_every_way_stays_in_its_group_and_starts_at_the_identity(group):
    assert torch.equal(turning.element(group, 6, 0.0), torch.eye(6, dtype=torch.float64))
    T = turning.element(group, 6, 0.8, seed=2)
    assert group.contains(T)
    assert (group is Group.TRIVIAL) == torch.equal(T, torch.eye(6, dtype=torch.float64))


def test_weights_move_and_logits_stand_still_unless_the_group_is_left():
    net = nets.open_net("fashion_hyperbolic_cp.fashion_mini")
    ready = turning.open_turnable(net, pictures.to_input(nets.pick(net, 0), net.wanted))
    found = turning.turn(ready, 0.5, [1, 2, 3])
    assert found.moved > 0.3
    assert found.difference < 1e-12
    assert "logits stand still" in turning.says(found, False)
    assert turning.weight_pictures(found).count("<figure>") == turning.SHOWN
    assert turning.logit_bars(found, net).count('class="bar"') == 20
    assert "O(16)" in turning.group_table(ready)
    with torch.no_grad():
        assert torch.allclose(found.logits[0].float(), net.model(ready.x.float())[0], atol=1e-4)
    still = turning.turn(ready, 0.0, [1, 2, 3])
    assert still.moved < 1e-12
    broken = turning.turn(ready, 0.5, [2], break_it=True)
    assert broken.difference > 1e-3
    assert "no element of the group" in turning.says(broken, True)
    with pytest.raises(ValueError, match="no stage 4"):
        turning.turn(ready, 0.5, [4])


# compare


def test_all_runs_of_the_checkout_are_read():
    entries, troubles = runs.read_runs([ROOT / "results", ROOT / "benchmarks/results"])
    assert troubles == []
    found = {(e.source, e.name): e for e in entries}
    example = found["frontier-fashion.json", "pde K=1, 2 blocks"]
    assert example.accuracy == pytest.approx((87.01 + 87.26 + 86.96) / 3)
    assert example.times["onnx"] == pytest.approx(0.2913, abs=1e-4)
    assert found["cifar10-tiny-global.json", "cifar_resnet_tiny_global"].times == {}
    assert {"cifar10", "mnist", "fashion", "imagenette"} <= set(runs.datasets(entries))
    some = runs.chosen(entries, ["fashion"], "PDE")
    assert {e.name for e in some} == {"pde", "pde, 2 blocks", "pde K=1, 2 blocks"}
    assert runs.picture(some, "onnx").count('class="point"') == 3
    assert "pde K=1, 2 blocks on fashion: 87.08 %, 0.291 ms" in runs.picture(some, "onnx")
    assert runs.listing(some, "onnx").count("<tr>") == 4
    assert "nothing to draw yet" in runs.picture(runs.chosen(entries, ["mnist"], ""), "onnx")


def test_missing_and_damaged_results_are_told(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "odd.json").write_text('{"teacher": {"test": 1}, "nets": {"a": 3}}')
    (tmp_path / "other.json").write_text('[1, {"accuracy": 3}]')
    entries, troubles = runs.read_runs([tmp_path, tmp_path / "none"])
    assert entries == []
    assert [line.partition(" ")[0] for line in troubles] == ["bad.json", "odd.json", "There"]
    assert serving.default_results() == () or Path("results").is_dir()


def test_networks_without_times_are_timed_here():
    built = {"builder": "timm", "name": "mnist_toy_conv", "kwargs": {}}
    entries = [
        runs.Entry("toy", "mnist", 91.0, "a.json", {}, model=built),
        runs.Entry("mine", "mnist", 92.0, "b.json", {}, model={"builder": "custom", "name": "os:getcwd"}),
        runs.Entry("known", "mnist", 93.0, "c.json", {"onnx": 1.0}),
    ]
    timed, troubles = runs.measure_here(entries)
    assert timed[0].times[runs.HERE] > 0
    assert timed[0].params == 524
    assert timed[1].times == {}
    assert timed[2] is entries[2]
    assert len(troubles) == 1
    assert troubles[0].startswith("mine cannot be built here")


# drawing


def test_maps_are_painted_from_low_to_high_and_what_is_not_finite_is_red():
    picture = drawing.paint(torch.tensor([[0.0, 1.0], [float("nan"), 0.5]]), cmap="gray")
    assert picture[0, 0].tolist() == [0, 0, 0]
    assert picture[0, 1].tolist() == [255, 255, 255]
    assert picture[1, 0].tolist() == [181, 73, 58]
    assert drawing.paint(torch.full((2, 2), float("inf"))).shape == (2, 2, 3)
    assert drawing.enlarge(picture, 5).shape == (6, 6, 3)
    uri = drawing.to_uri(picture)
    assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))) == picture).all()


def test_arrows_point_with_the_flow_and_still_water_has_none():
    right = drawing.arrows(torch.ones(4, 4), torch.zeros(4, 4))
    first = right.partition('d="M')[2].partition('"')[0]
    start, end = (tuple(map(float, q.split())) for q in first.partition("M")[0].split("L"))
    assert end[0] > start[0]
    assert end[1] == start[1]
    assert 'd=""' in drawing.arrows(torch.zeros(4, 4), torch.zeros(4, 4))


def test_charts_escape_what_they_are_told():
    series = [Series("<b>", [1, 2], [3, 4], notes=["a & b", '"c"'])]
    svg = drawing.chart(series, Chart("x", "y", "<title>"))
    assert "<b>" not in svg
    assert "a &amp; b" in svg
    assert "&quot;c&quot;" in svg
    assert svg.count('class="point"') == 2
    one = drawing.chart([Series("one", [1.0], [2.0])], Chart("x", "y", "t", log=True))
    assert "nan" not in one


# the command


def test_the_help_names_every_option_without_importing_torch_or_gradio():
    result = CliRunner().invoke(app, ["studio", "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
    assert result.exit_code == 0
    for option in ("--host", "--port", "--share", "--no-browser", "--results", "--data"):
        assert option in result.output
    code = "import sys, pdecnn.cli.studio; print({'torch', 'gradio'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_without_the_extra_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    result = CliRunner().invoke(app, ["studio", "--no-browser"])
    assert result.exit_code == 1
    assert 'pip install "pdecnn[studio]"' in result.output


def test_gradio_is_told_to_send_nothing_before_it_is_imported(monkeypatch):
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace())
    serving.load_gradio()
    assert serving.os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_browsers_are_told_to_load_nothing_from_elsewhere():
    import asyncio

    sent = []

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "headers": []})

    async def send(message):
        sent.append(message)

    asyncio.run(serving.OnlySelf(page)({"type": "http"}, None, send))
    policy = dict(sent[0]["headers"])[b"content-security-policy"].decode()
    assert policy.startswith("default-src 'self'")
    assert "http" not in policy
