"""The table of what may stand in the place of removed blocks: each starts, fits, trains, saves, loads and exports."""

import dataclasses

import pytest
import timm
import torch
from torch import nn

import pdecnn
from pdecnn.condensation import fit_layers, plan, register_replacement
from pdecnn.condensation.apply import new_layers
from pdecnn.condensation.replacements import _BUILDS, Correction, build, replacements
from pdecnn.condensation.site import Run
from pdecnn.shared.reading import FileError

TABLE = ("nothing", "depthwise", "separable", "pde", "paper")


@pytest.fixture(scope="module")
def teacher():
    torch.manual_seed(0)
    return timm.create_model("cifar_resnet32", num_classes=4).eval()


@pytest.fixture(scope="module")
def images():
    return torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def run_of(shape, *, signed, replacement):
    units = (("0",), ("1",))
    return Run("chain", "", units, keep=1, block="Block", shape=shape, signed=signed, replacement=replacement, K=2)


def test_the_table():
    assert set(TABLE) <= set(replacements())


@pytest.mark.parametrize("replacement", TABLE)
@pytest.mark.parametrize("shape", [(6, 9), (6, 9, 7), (6, 5, 4, 7)])
@pytest.mark.parametrize("signed", [True, False])
def test_each_keeps_the_shape_and_corrections_start_as_the_identity(replacement, shape, signed):
    layer = build(run_of(shape, signed=signed, replacement=replacement), None, torch.empty(0, dtype=torch.float64))
    x = torch.randn(3, *shape, dtype=torch.float64)
    x = x if signed else x.relu()
    out = layer.eval()(x)
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    if replacement != "paper":
        torch.testing.assert_close(out, x)
    if not signed:
        assert out.min() >= 0


@pytest.mark.parametrize("replacement", TABLE)
def test_a_plan_counts_what_it_builds(teacher, images, replacement):
    made = plan(teacher, images[:1], replacement=replacement, K=2)
    small = made.apply(teacher)
    assert sum(p.numel() for p in small.parameters()) == made.after.params
    assert pdecnn.profile(small, images[:1]).exact == made.after.macs
    assert len(new_layers(small, made.runs)) == (0 if replacement == "nothing" else 3)
    assert pdecnn.Plan.from_dict(made.to_dict()) == made
    assert (replacement if replacement != "paper" else "Global") in str(made) or replacement == "nothing"


@pytest.mark.parametrize("replacement", TABLE)
def test_each_is_fitted_saved_loaded_and_exported(teacher, images, replacement, tmp_path):
    made = plan(teacher, images[:1], replacement=replacement, K=2)
    small = made.apply(teacher)
    found = fit_layers(small, teacher, made, images, batch_size=16, steps=20)
    assert len(found) == 3
    assert all(f.after <= f.skipped + 1e-6 for f in found) or replacement == "paper"
    pdecnn.save(small, tmp_path / "net")
    again = pdecnn.load(tmp_path / "net")
    with torch.no_grad():
        torch.testing.assert_close(again(images[:4]), small.eval()(images[:4]))
    report = pdecnn.export(small, tmp_path / "net.onnx", images[:4])
    assert report.agreement.max_error < 1e-4


@pytest.mark.parametrize("replacement", ["depthwise", "separable", "pde"])
@pytest.mark.parametrize("signed", [True, False])
def test_a_map_within_reach_is_found_by_regression_alone(replacement, signed):
    """The target is what a layer with the same inner part gives: least squares must find it without a step."""
    torch.manual_seed(1)
    run = run_of((6, 8, 8), signed=True, replacement=replacement)  # regression does not know of the activation
    wanted = build(run, None, torch.empty(0)).eval()
    layer = build(run, None, torch.empty(0)).eval()
    layer.load_state_dict(wanted.state_dict())
    nn.init.uniform_(wanted.norm.weight, 0.5, 2.0)
    if signed:
        nn.init.normal_(wanted.norm.bias)
    if replacement != "depthwise":
        nn.init.normal_(layer.branch[-1].weight)
    x = torch.randn(64, 6, 8, 8)
    with torch.no_grad():
        # the inner norms are calibrated on the maps first, so the wanted layer is given the same statistics
        for m in (wanted, layer):
            inner = m.branch[1] if replacement != "depthwise" else None
            if inner is not None:
                inner.momentum = 1.0
                inner.train()(m.branch[0](x))
                inner.eval()
                inner.momentum = 0.1
        y = wanted(x)
    from pdecnn.condensation.fit import fit_layer

    found = fit_layer(layer, x, y, steps=0, lr=0.01, batch_size=16, seed=0)
    assert found.skipped > 0.02
    assert found.after < 1e-3 * found.skipped


def test_a_replacement_of_ones_own(teacher, images, tmp_path):
    @register_replacement("blur")
    def blur(run):
        return Correction(nn.AvgPool2d(3, 1, 1, count_include_pad=False), run)

    try:
        made = plan(teacher, images[:1], replacement="blur")
        small = made.apply(teacher)
        assert all(isinstance(m, Correction) for m in new_layers(small, made.runs).values())
        pdecnn.save(small, tmp_path / "net")
        torch.testing.assert_close(pdecnn.load(tmp_path / "net")(images[:2]), small(images[:2]))
    finally:
        del _BUILDS["blur"]
    with pytest.raises(ValueError, match=r"replacement must be one of .*, got 'blur'"):
        pdecnn.load(tmp_path / "net")


@pytest.mark.parametrize("name", TABLE)
def test_names_of_the_package_are_taken(name):
    with pytest.raises(ValueError, match=f"'{name}' is one of the package's own. Choose another name"):
        register_replacement(name)


def test_what_cannot_be_is_refused(teacher, images):
    with pytest.raises(ValueError, match=r"got 'pd'\. Close: 'pde'"):
        plan(teacher, images[:1], replacement="pd")
    with pytest.raises(FileError, match="init='block' is for replacement='paper', got 'pde'"):
        plan(teacher, images[:1], replacement="pde", init="block")
    with pytest.raises(FileError, match="options are for replacement='paper' and 'pde', got 'separable'"):
        plan(teacher, images[:1], replacement="separable", options={"dt": 0.1})


VARIANTS = [
    {"share": 8, "implicit": True},
    {"reaction": False},
    {"maps": True},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_each_variant_of_the_equation_is_fitted_saved_loaded_and_exported(teacher, images, options, tmp_path):
    made = plan(teacher, images[:1], replacement="pde", K=2, options=options)
    assert all(run.options == options for run in pdecnn.Plan.from_dict(made.to_dict()).runs)
    small = made.apply(teacher)
    assert sum(p.numel() for p in small.parameters()) == made.after.params
    with torch.no_grad():
        bare = plan(teacher, images[:1], replacement="nothing").apply(teacher).eval()
        torch.testing.assert_close(small.eval()(images[:4]), bare(images[:4]))  # it starts as the identity
    found = fit_layers(small, teacher, made, images, batch_size=16, steps=20)
    assert all(f.after <= f.skipped + 1e-6 for f in found)
    assert any(f.after < f.skipped for f in found)
    pdecnn.save(small, tmp_path / "net")
    again = pdecnn.load(tmp_path / "net")
    with torch.no_grad():
        torch.testing.assert_close(again(images[:4]), small.eval()(images[:4]))
    report = pdecnn.export(small, tmp_path / "net.onnx", images[:4])
    assert report.agreement.max_error < 1e-4


@pytest.mark.parametrize("shape", [(6, 9), (6, 5, 4, 7)])
def test_variants_are_for_signals_and_volumes_too(shape):
    run = run_of(shape, signed=True, replacement="pde")
    layer = build(dataclasses.replace(run, options={"share": 3, "implicit": True}), None, torch.empty(0))
    x = torch.randn(2, *shape)
    torch.testing.assert_close(layer.eval()(x), x)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"shared": 2}, r"pde has no option 'shared'.*Close: 'share'"),
        ({"share": 5}, "share=5 must divide the 16 channels"),
        ({"share": True}, "the option share of pde is a int, got True"),
        ({"maps": True, "share": 2}, "with maps the equation is for images"),
    ],
)
def test_a_variant_that_cannot_be_is_refused(teacher, images, options, message):
    with pytest.raises(FileError, match=message):
        plan(teacher, images[:1], replacement="pde", options=options)


def test_a_plan_that_does_not_say_has_the_published_layer(teacher, images):
    old = plan(teacher, images[:1], replacement="paper").to_dict()
    for run in old["runs"]:
        del run["replacement"]
    assert {run.replacement for run in pdecnn.Plan.from_dict(old).runs} == {"paper"}
