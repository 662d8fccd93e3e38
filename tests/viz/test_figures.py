"""The figures: every one is drawn from what ships, and what it shows is right."""

import io
import json
import warnings

import pytest
import timm
import torch
from typer.testing import CliRunner

from pdecnn.analysis.published import rows
from pdecnn.cli import app
from pdecnn.layers import GlobalLayer
from pdecnn.training.datasets import load_sample
from pdecnn.viz.figures import FIGURES, cost, draw_figure, fields, receptive_field, stability, steps, toys


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_from_what_ships(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["figure", name])
    assert result.exit_code == 0, result.output
    picture = (tmp_path / f"{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 10_000


def test_the_figures_are_listed_and_mistakes_named():
    listed = CliRunner().invoke(app, ["figure"])
    assert all(name in listed.output for name in FIGURES)
    wrong = CliRunner().invoke(app, ["figure", "toy"])
    assert wrong.exit_code == 2
    assert "receptive-field" in wrong.output


@pytest.mark.parametrize("K, reached", [(1, 5), (2, 13), (5, 61), (10, 221)])
def test_the_reach_of_k_steps_is_a_diamond(K, reached):
    """All places at most K moves away: 2 K (K + 1) + 1 of them. K = 5 is not global on 32x32."""
    field = receptive_field.theoretical(K)
    assert field.sum() == reached == 2 * K * (K + 1) + 1
    y, x = field.nonzero().T
    assert ((y - 16).abs() + (x - 16).abs()).max() == K


def test_the_measured_field_lies_within_the_reach():
    """Steps alone reach K; the convolutions of the coefficients add one pixel on each side, and diagonals of it."""
    torch.manual_seed(0)
    layer = GlobalLayer(4, K=3).eval()
    field = receptive_field.effective(layer, torch.randn(2, 4, 17, 17))
    y, x = (field > 0).nonzero().T
    distance = (y - 8).abs() + (x - 8).abs()
    assert 3 <= distance.max() <= 3 + 2
    assert field[8, 8] == field.max()


def test_unstable_points_are_those_that_the_layer_reports():
    torch.manual_seed(0)
    model = timm.create_model("cifar_resnet_tiny_global.cifar10", pretrained=True).eval()
    layer = next(m for m in model.modules() if isinstance(m, GlobalLayer))
    x = torch.randn(2, layer.channels, 8, 8)
    A_x, A_y, V = stability.courant_numbers(layer, x)
    report = layer.stability(x)
    assert (A_x + A_y).max().item() == pytest.approx(report.cfl, rel=1e-5)
    assert (V > 1).double().mean().item() == pytest.approx(report.von_neumann_fraction, rel=1e-5)


def test_costs_are_counted():
    c, n = 64, 32 * 32
    assert cost.macs("fully coupled", 64, 32, 3) == 9 * c * c * n
    assert cost.macs("LinearMix", 64, 32, 5) == n * (25 * c + c * c)


@pytest.mark.parametrize("ending, head", [("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_a_figure_is_written_in_the_format_of_its_ending(tmp_path, ending, head):
    path = draw_figure("cost", tmp_path / f"cost.{ending}")
    assert path.read_bytes().startswith(head)


@pytest.mark.parametrize("name", ["cost.jpg", "cost"])
def test_other_endings_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"expected a file that ends in \.png, \.pdf, \.svg, got '{name}'"):
        draw_figure("cost", tmp_path.joinpath(name).relative_to(tmp_path))
    result = CliRunner().invoke(app, ["figure", "cost", "--output", name])
    assert result.exit_code == 1
    assert "ends in .png, .pdf, .svg" in result.output
    assert not list(tmp_path.iterdir())


def drawn(axes):
    """The one map that a panel shows."""
    (image,) = axes.images
    return torch.as_tensor(image.get_array().filled())


def test_the_toys_show_their_maps_for_each_digit():
    digits, columns = len(toys.DIGITS), 1 + 2 * len(toys.TOYS)
    panels = toys.draw().axes
    assert len(panels) == digits * columns
    sample = load_sample("mnist")
    for i, digit in enumerate(toys.DIGITS):
        picture, *maps = (drawn(axes) for axes in panels[i * columns : (i + 1) * columns])
        assert any(torch.equal(picture, x[0]) for x in sample.x[sample.y == digit])
        for values in maps:
            assert values.shape == (28, 28)
            assert values.isfinite().all()
            assert values.std() > 0
    answers = [axes.get_xlabel() for axes in panels if axes.get_xlabel()]
    assert len(answers) == digits * len(toys.TOYS)
    assert all(int(text.removeprefix("takes it for ")) in range(10) for text in answers)
    assert [panels[c].get_title() for c in (2, 4, 6)] == [f"after {what}" for what in toys.TOYS.values()]


def test_the_fields_are_finite_and_vary_and_the_arrows_are_their_flow():
    columns = 2 + len(fields.NAMES)
    panels = fields.draw().axes[: fields.IMAGES * columns]
    assert [axes.get_title() for axes in panels[2:columns]] == list(fields.NAMES)
    for i in range(fields.IMAGES):
        picture, flow, *maps = panels[i * columns : (i + 1) * columns]
        assert torch.equal(drawn(picture), load_sample("cifar10").x[i].permute(1, 2, 0))
        u, v, D_x, D_y = (drawn(axes) for axes in maps)
        for values in (u, v, D_x, D_y):
            assert values.shape == (8, 8)
            assert values.isfinite().all()
            assert values.std() > 0
        assert min(D_x.min(), D_y.min()) >= 0
        (arrows,) = flow.collections
        assert torch.equal(torch.as_tensor(arrows.U), u.flatten())
        assert torch.equal(torch.as_tensor(arrows.V), v.flatten())


@pytest.mark.parametrize("name", ["fields", "toys"])
def test_no_title_is_cut_off(name):
    from matplotlib.image import imread

    png = io.BytesIO()
    {"fields": fields, "toys": toys}[name].draw().savefig(png, format="png", dpi=130)
    png.seek(0)
    picture = torch.as_tensor(imread(png))[..., :3]
    edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
    assert all((edge > 0.98).all() for edge in edges)


def write_runs(folder, accuracies, **recipe_too):
    """Results as training writes them, of the nets of Table 6 on CIFAR-10, by their K."""
    for row in rows(6):
        K = int(row.name.split()[-1])
        if row.dataset == "CIFAR-10" and K in accuracies:
            recipe = {"model": {"kwargs": dict(row.options)}, **recipe_too}
            run = {"model": row.model, "dataset": "cifar10", "epochs": 7, "recipe": recipe}
            runs = [{**run, "accuracy": accuracy} for accuracy in accuracies[K]]
            (folder / f"{K}.json").write_text(json.dumps(runs))


def test_steps_says_which_of_our_nets_had_a_teacher(tmp_path):
    write_runs(tmp_path, {5: [91.5]}, distill={"weight": 0.9})
    left, _ = steps.draw(tmp_path).axes
    assert "CIFAR-10, ours (7 epochs, distilled)" in [line.get_label() for line in left.lines]


def test_steps_shows_the_printed_values_and_the_results_that_were_given(tmp_path):
    write_runs(tmp_path, {1: [80.0, 82.0], 5: [91.5]})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        left, right = steps.draw(tmp_path).axes
    lines = {line.get_label(): line for line in left.lines}
    assert list(lines) == ["CIFAR-10, printed", "CIFAR-10, ours (7 epochs)", "CIFAR-100, printed"]
    ours = lines["CIFAR-10, ours (7 epochs)"]
    assert dict(zip(ours.get_xdata(), ours.get_ydata(), strict=True)) == {1: 81.0, 5: 91.5}
    printed = {int(row.name.split()[-1]): row.accuracy for row in rows(6) if row.dataset == "CIFAR-10"}
    theirs = lines["CIFAR-10, printed"]
    assert dict(zip(theirs.get_xdata(), theirs.get_ydata(), strict=True)) == printed
    for line in right.lines[:2]:
        assert tuple(line.get_xdata()) == steps.STEPS
        assert all(0 <= value <= 100 for value in line.get_ydata())
        assert max(line.get_ydata()) == line.get_ydata()[steps.STEPS.index(5)]  # the K of the training


def test_steps_takes_a_folder_of_results_and_says_when_it_has_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["figure", "steps"])
    assert said.exit_code == 0
    assert said.stderr == (
        "figure: steps: results has no runs of these nets, so ours are missing; name their folder by --results.\n"
    )
    mine = tmp_path / "mine"
    mine.mkdir()
    write_runs(mine, {3: [85.0]})
    found = CliRunner().invoke(app, ["figure", "steps", "--results", "mine"])
    assert (found.exit_code, found.stderr) == (0, "")
    for arguments in (["steps", "--results", "nowhere"], ["cost", "--results", "mine"]):
        wrong = CliRunner().invoke(app, ["figure", *arguments])
        assert wrong.exit_code == 2
        assert "--results" in wrong.output
