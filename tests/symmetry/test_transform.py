"""The table of verified and broken actions of the hyperbolic networks, and the refusals."""

import copy

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from symmetry_networks import images, network
from torch import nn

from pdecnn.layers import HardBall
from pdecnn.models import HyperbolicConfig, HyperbolicNet
from pdecnn.symmetry import (
    Group,
    fold_norms,
    lift_model,
    random_transforms,
    register_nonlinearity,
    symmetry_of,
    transform,
    verify,
)
from pdecnn.symmetry.streams import NONLINEARITIES
from pdecnn.testing import assert_same_function

GL, O, S = Group.GL, Group.O, Group.PERMUTATION  # noqa: E741
SIGNED, POSITIVE, MONOMIAL = Group.SIGNED_PERMUTATION, Group.POSITIVE_MONOMIAL, Group.MONOMIAL


def elements(*groups, widths=(8, 12), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {s: g.sample(n, generator, 0.5) for s, (g, n) in enumerate(zip(groups, widths, strict=True), start=1)}


EXACT = [
    ("none", True, GL, GL),
    ("softball", True, GL, O),
    ("hardball", True, GL, O),
    ("relu", True, GL, S),
    ("relu", True, GL, POSITIVE),
    ("hardtanh", True, GL, S),
    ("hardtanh", True, GL, SIGNED),
    ("softball", False, POSITIVE, O),
]


@pytest.mark.parametrize("activation, linear_stem, first, second", EXACT)
def test_allowed_elements_leave_the_function_unchanged(activation, linear_stem, first, second):
    net = network("cp", activation, linear_stem=linear_stem)
    assert verify(net, transform(net, elements(first, second)), images()) < 1e-12


BROKEN = [
    ("softball", True, GL, GL, r"T of stage 2 is outside O\(12\)"),
    ("hardball", True, GL, GL, r"T of stage 2 is outside O\(12\)"),
    ("relu", True, GL, O, r"T of stage 2 is outside positive monomial\(12\)"),
    ("hardtanh", True, GL, O, r"T of stage 2 is outside signed permutations\(12\)"),
    ("softball", False, SIGNED, O, r"T of stage 1 is outside positive monomial\(8\).*ReLU 'stem.act'"),
    ("softball", False, O, O, r"T of stage 1 is outside positive monomial\(8\)"),
    ("softball", False, GL, O, r"T of stage 1 is outside positive monomial\(8\)"),
]


@pytest.mark.parametrize("activation, linear_stem, first, second, message", BROKEN)
def test_other_elements_are_refused_and_would_break_it(activation, linear_stem, first, second, message):
    net, T = network("cp", activation, linear_stem=linear_stem), elements(first, second)
    with pytest.raises(ValueError, match=message):
        transform(net, T)
    assert verify(net, transform(net, T, force=True), images()) > 1e-2


EQUATIONS = ["eq3", "eq4", "eq5", "eq6", "eq7"]


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("activation, groups", [("none", (MONOMIAL, MONOMIAL)), ("softball", (MONOMIAL, SIGNED))])
def test_factored_equations_keep_the_monomial_group(equation, shared, activation, groups):
    net = network(equation, activation, shared=shared)
    assert tuple(s.group for s in symmetry_of(net).values()) == groups
    widths = (8, 16) if equation == "eq5" else (8, 12)
    assert verify(net, transform(net, elements(*groups, widths=widths)), images()) < 1e-12


@pytest.mark.parametrize("equation", ["eq4", "eq5"])
@pytest.mark.parametrize("shared", [True, False])
def test_so_do_they_as_the_text_reads(equation, shared):
    net = network(equation, "softball", shared=shared, reading="text")
    widths = (8, 16) if equation == "eq5" else (8, 12)
    assert verify(net, transform(net, elements(MONOMIAL, SIGNED, widths=widths)), images()) < 1e-12
    assert verify(net, transform(net, elements(O, O, widths=widths), force=True), images()) > 1e-2


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("group", [O, GL])
def test_factored_equations_do_not_carry_the_full_group(equation, group):
    net = network(equation, "none")
    T = elements(group, group, widths=(8, 16) if equation == "eq5" else (8, 12))
    with pytest.raises(ValueError, match=r"outside monomial\(8\): it has rows or columns with more than one entry"):
        transform(net, T)
    assert verify(net, transform(net, T, force=True), images()) > 1e-2


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activation, second", [("none", GL), ("softball", O)])
def test_lifting_equation_3_gives_it_the_full_group(shared, activation, second):
    net = network("eq3", activation, shared=shared)
    lifted = lift_model(net)
    assert_same_function(net, lifted, images(), rtol=1e-12)
    assert symmetry_of(lifted)[2].group is second
    assert verify(net, transform(lifted, elements(GL, second)), images()) < 1e-12


def test_lifting_costs_a_matrix_per_block():
    net = network("eq3")
    extra = sum(p.numel() for p in lift_model(net).parameters()) - sum(p.numel() for p in net.parameters())
    expected = sum(b.f * b.n**2 + 9 * b.f * (b.n - 1) for b in net.blocks())
    assert extra == expected


@settings(max_examples=15, deadline=None)
@given(
    widths=st.tuples(st.integers(1, 6), st.integers(7, 9), st.integers(10, 12)),
    depths=st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(1, 2)),
    activation=st.sampled_from(["none", "relu", "hardtanh", "hardball", "softball"]),
    place=st.sampled_from(["all", "ds"]),
    linear_stem=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_random_element_of_the_named_group_always_acts(widths, depths, activation, place, linear_stem, seed):
    torch.manual_seed(seed)
    cfg = HyperbolicConfig("cp", widths, depths, 1, False, activation, place, 3, 2, linear_stem)
    net = HyperbolicNet(cfg, num_classes=3, dtype=torch.float64, zero_init_last=False).eval()
    T = random_transforms(net, torch.Generator().manual_seed(seed))
    assert verify(net, transform(net, T), torch.randn(1, 3, 16, 16, dtype=torch.float64)) < 1e-10


def test_actions_compose():
    net = network()
    A, B = elements(GL, O, seed=1), elements(GL, O, seed=2)
    both = transform(transform(net, A), B)
    once = transform(net, {s: B[s] @ A[s] for s in A})
    for p, q in zip(both.parameters(), once.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)


def test_the_model_itself_is_left_alone():
    net = network().train()
    before = copy.deepcopy(net.state_dict())
    transform(net, random_transforms(net))
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())


def test_an_unfolded_norm_breaks_it():
    """Multiplying the convolution alone, with the norm after it left as it is, changes the function."""
    net = network()
    T = elements(GL, O)[2]
    wrong = copy.deepcopy(net)
    for block in wrong.stages[1]:
        block.mix.weight.data = torch.einsum("ij,jkhw->ikhw", T, block.mix.weight.data)
        if block.n == 12:
            block.factors.weight.data = torch.einsum("oihw,ij->ojhw", block.factors.weight.data, T.mT)
    wrong.stages[1][0].skip[0].weight.data = torch.einsum("ij,jkhw->ikhw", T, wrong.stages[1][0].skip[0].weight.data)
    wrong.fc.weight.data = wrong.fc.weight.data @ T.mT
    assert verify(net, wrong, images()) > 1e-2


def test_norms_in_training_mode_break_it():
    net = network()
    turned = transform(net, elements(GL, O))
    a, b = net.train()(images()), turned.train()(images())
    assert ((a - b).abs().max() / a.abs().max()) > 1e-2


def test_folding_changes_nothing_and_removes_the_norms_of_the_stream():
    for equation in ("cp", *EQUATIONS):
        net = network(equation)
        folded = fold_norms(net)
        assert_same_function(net, folded, images(), rtol=1e-12)
        assert isinstance(folded.stem.bn, nn.Identity)
        left = [name for name, m in folded.named_modules() if isinstance(m, nn.BatchNorm2d) and name.endswith(".norm")]
        assert bool(left) == (equation == "eq4")


def test_the_group_of_the_published_cp_model():
    groups = symmetry_of(timm.create_model("hyperbolic50_cp"))
    assert [s.label for s in groups.values()] == ["positive monomial(64)", "O(128)", "O(256)", "O(512)"]
    assert "ReLU 'stem.act'" in groups[1].reason
    assert "MaxPool2d 'stem.pool'" in groups[1].reason
    assert groups[2].reason.startswith("HardBall 'stages.1.0.act': it depends on the length")


@pytest.mark.parametrize("equation", EQUATIONS)
def test_the_group_of_the_models_of_table_1(equation):
    groups = symmetry_of(timm.create_model(f"hyperbolic50_{equation}"))
    assert [s.group for s in groups.values()] == [POSITIVE, SIGNED, SIGNED, SIGNED]


def test_hyperbolic50_cp_at_full_size():
    """Relative output error at most 1e-10 in float64 and 1e-4 in float32, at 224 x 224."""
    torch.manual_seed(0)
    net = timm.create_model("hyperbolic50_cp", num_classes=100, zero_init_last=False).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.bias.data.normal_(0, 0.1)
    T, x = random_transforms(net, torch.Generator().manual_seed(0)), torch.randn(1, 3, 224, 224)
    assert verify(net, transform(net, T), x, torch.float32) < 1e-4
    net = net.double()
    assert verify(net, transform(net, T), x) < 1e-10


def test_unknown_modules_allow_nothing_until_they_are_registered():
    class Gate(nn.Module):
        def forward(self, u):
            return u * u.mean((2, 3), keepdim=True).sigmoid()

    net = network()
    net.stages[1][1].act = Gate()
    assert symmetry_of(net)[2].group is Group.TRIVIAL
    assert "nothing is known of it" in symmetry_of(net)[2].reason
    with pytest.raises(ValueError, match=r"outside identity\(12\).*Gate 'stages.1.1.act'"):
        transform(net, elements(GL, S))
    register_nonlinearity(Gate, Group.PERMUTATION, "it gates each channel by itself")
    try:
        assert symmetry_of(net)[2].group is Group.PERMUTATION
        assert verify(net, transform(net, elements(GL, S)), images()) < 1e-12
    finally:
        del NONLINEARITIES[Gate]


def test_a_sequence_of_activations_allows_what_all_allow():
    net = network()
    net.stages[1][1].act = nn.Sequential(HardBall(12), nn.ReLU())
    assert symmetry_of(net)[2].group is Group.PERMUTATION


def test_refusals():
    net = network()
    with pytest.raises(ValueError, match="there is no stage 3; the stages are 1 to 2"):
        transform(net, {3: torch.eye(8)})
    with pytest.raises(ValueError, match=r"expected T of shape \(12, 12\) for stage 2, got \(8, 8\)"):
        transform(net, {2: torch.eye(8)})
    with pytest.raises(TypeError, match=r"only the streams of pdecnn.models.HyperbolicNet are understood, got Linear"):
        symmetry_of(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"only networks of Equation \(3\) can be lifted, got CPBlock"):
        lift_model(net)
    net.stages[0][0].norm = nn.GroupNorm(1, 8)
    with pytest.raises(TypeError, match="expected a BatchNorm2d at 'norm' after 'mix', got GroupNorm"):
        fold_norms(net)
    net = network()
    net.stages[0][0] = type("Strange", (type(net.stages[0][0]),), {})(8)
    with pytest.raises(TypeError, match="unknown block Strange; known are Equation3"):
        symmetry_of(net)
