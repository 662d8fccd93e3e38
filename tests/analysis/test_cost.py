import csv
import io
import json

import pytest
import timm
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from pdecnn.analysis.cost import CostReport, profile
from pdecnn.analysis.formulas import KINDS, fft_macs, macs_of

ones_like_count = {"kernel": st.integers(1, 5), "stride": st.integers(1, 3), "dilation": st.integers(1, 2)}


class Fn(nn.Module):
    """A function as a module, so that functional operators can be profiled."""

    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, *args):
        return self.fn(*args)


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 3),
    c_in=st.integers(1, 3),
    c_out=st.integers(1, 3),
    H=st.integers(1, 9),
    W=st.integers(1, 9),
    batch=st.integers(1, 3),
    bias=st.booleans(),
    **ones_like_count,
)
def test_convolution_macs_are_the_sum_of_a_convolution_of_ones(
    groups, c_in, c_out, H, W, batch, bias, kernel, stride, dilation
):
    # without padding every output of ones * ones is the number of its multiplications
    assume(min(H, W) > dilation * (kernel - 1))
    conv = nn.Conv2d(groups * c_in, groups * c_out, kernel, stride, dilation=dilation, groups=groups, bias=bias)
    x = torch.ones(batch, groups * c_in, H, W)
    report = profile(conv, x)
    with torch.no_grad():
        counted = nn.functional.conv2d(x, torch.ones_like(conv.weight), None, stride, 0, dilation, groups)
    assert report.exact == report.conv_fc == int(counted.sum())
    assert report.thop == report.exact + bias * counted.numel()
    assert report.params == conv.weight.numel() + bias * groups * c_out
    assert report.activation_bytes == 4 * counted.numel()


@given(n=st.integers(1, 40), m=st.integers(1, 40), batch=st.integers(1, 5), bias=st.booleans())
@settings(deadline=None)
def test_linear_macs(n, m, batch, bias):
    report = profile(nn.Linear(n, m, bias=bias), torch.ones(batch, n))
    assert report.macs == {**dict.fromkeys(KINDS, 0), "linear": batch * n * m}
    assert report.thop == batch * n * m
    assert report.params == n * m + bias * m


@st.composite
def networks(draw, depth=2):
    """Nested sequences of layers on 4 channels, some of them used twice."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["conv", "bn", "relu", "gate", "again", "nested" if depth else "conv"]))
        if kind == "again" and layers:
            layers.append(draw(st.sampled_from(layers)))
        elif kind == "nested":
            layers.append(draw(networks(depth=depth - 1)))
        else:
            new = {
                "bn": lambda: nn.BatchNorm2d(4),
                "relu": nn.ReLU,
                "gate": lambda: Fn(lambda h: h * h),
            }
            layers.append(new.get(kind, lambda: nn.Conv2d(4, 4, 3, padding=1))())
    return nn.Sequential(*layers)


@settings(max_examples=40, deadline=None)
@given(model=networks())
def test_totals_are_the_sums_of_the_tree_and_agree_with_torchs_flop_counter(model):
    x = torch.zeros(2, 4, 5, 5)
    report = profile(model, x)
    whole = report.subtree("")
    assert (whole.params, whole.exact, whole.conv_fc, whole.thop, whole.activation_bytes) == (
        report.params,
        report.exact,
        report.conv_fc,
        report.thop,
        report.activation_bytes,
    )
    children = [report.subtree(name) for name, _ in model.named_children()]  # torch lists a repeated child once
    seen = {id(m): name for name, m in reversed(list(model._modules.items()))}
    repeated = [report.subtree(name) for name, m in model._modules.items() if seen[id(m)] != name]
    assert sum(c.exact for c in children + repeated) == report.exact
    assert sum(c.activation_bytes for c in children + repeated) == report.activation_bytes
    assert report.params == sum(p.numel() for p in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(x)
    assert 2 * report.conv_fc == counter.get_total_flops()
    assert sum(m.calls for m in report.modules) >= len({id(m) for m in model.modules()})


def test_shared_parameters_are_counted_once_and_shared_work_twice():
    conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    tied = nn.Conv2d(4, 4, 3, padding=1, bias=False)
    tied.weight = conv.weight
    report = profile(nn.Sequential(conv, conv, tied), torch.zeros(1, 4, 6, 6))
    assert report.params == 144
    assert report.exact == 3 * 144 * 36
    assert report.depth == 3


def test_the_work_of_a_module_in_two_places_is_booked_where_it_was_called():
    shared = nn.Conv2d(4, 4, 3, padding=1)
    report = profile(nn.Sequential(nn.Sequential(shared), nn.Sequential(nn.ReLU(), shared)), torch.zeros(1, 4, 6, 6))
    assert report.subtree("0").exact == report.subtree("1").exact == 144 * 36
    assert {m.name: m.calls for m in report.modules if m.type == "Conv2d"} == {"0.0": 1, "1.1": 1}
    assert (report.subtree("0").params, report.subtree("1").params) == (148, 0)


def test_element_wise_products_gates_and_norms():
    x = torch.zeros(2, 8, 4, 4)
    assert profile(Fn(lambda h: 0.5 * h + h), x).macs["elementwise"] == x.numel()
    assert profile(Fn(lambda h: h / (1 + h)), x).macs["elementwise"] == x.numel()
    assert profile(Fn(lambda h: torch.addcmul(h, h, h)), x).macs["elementwise"] == x.numel()
    assert profile(Fn(lambda h: h**2 + h**5), x).macs["elementwise"] == (1 + 3) * x.numel()
    assert profile(nn.GroupNorm(2, 8), x).macs["elementwise"] == 2 * x.numel()
    norm = profile(nn.BatchNorm2d(8), x)
    assert (norm.exact, norm.thop) == (0, 2 * x.numel())
    assert norm.not_counted[0].elements == x.numel()
    assert "folds" in norm.not_counted[0].reason
    assert profile(Fn(lambda i: i * 2), torch.zeros(5, dtype=torch.long)).exact == 0


def test_complex_products_are_four_real_ones():
    real, z = torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.complex64)
    assert profile(Fn(torch.mul), (z, z)).exact == 4 * 12
    assert profile(Fn(torch.mul), (z, real)).exact == profile(Fn(lambda q: 2 * q), z).exact == 2 * 12
    assert profile(Fn(torch.div), (z, z)).exact == 8 * 12
    assert profile(Fn(lambda q: q @ q.mT), z).exact == 4 * profile(Fn(lambda q: q @ q.mT), real).exact == 4 * 36


def butterfly_multiplications(n):
    """Counts the real multiplications of a recursive radix-2 transform of length n as it runs."""
    return 0 if n == 1 else 2 * butterfly_multiplications(n // 2) + 4 * (n // 2)


@given(log_n=st.integers(0, 6), batch=st.integers(1, 3))
@settings(deadline=None)
def test_fft_macs_are_those_of_the_recursion(log_n, batch):
    n = 2**log_n
    x = torch.zeros(batch, n, dtype=torch.complex64)
    assert profile(Fn(torch.fft.fft), x).macs["fft"] == batch * butterfly_multiplications(n)
    assert profile(Fn(torch.fft.rfft), x.real).macs["fft"] == batch * butterfly_multiplications(n) // 2
    assert fft_macs([n], batch, real=False) == batch * butterfly_multiplications(n)


def test_inverse_and_two_dimensional_ffts():
    x = torch.zeros(3, 8, 16)
    assert profile(Fn(torch.fft.rfft2), x).macs["fft"] == 3 * 128 * 7
    there_and_back = Fn(lambda h: torch.fft.irfft2(torch.fft.rfft2(h)))
    assert profile(there_and_back, x).macs["fft"] == 2 * 3 * 128 * 7
    assert profile(Fn(torch.fft.fft2), x.to(torch.complex64)).macs["fft"] == 2 * 3 * 128 * 7


def test_our_formulas_leave_torchs_flop_counter_alone():
    with FlopCounterMode(display=False) as counter:
        torch.fft.fft(torch.ones(8) * 3)
    assert counter.get_total_flops() == 0


@pytest.mark.parametrize(
    "name, params, conv_fc, thop",
    [
        ("mobilenetv2_100", 3_504_872, 300.8, 314.2),
        ("mobilenetv3_large_100", 5_483_032, 216.6, 225.4),
        ("efficientnet_b0", 5_288_548, 385.8, 399.4),
    ],
)
def test_known_counts_of_timm_models(name, params, conv_fc, thop):
    with torch.device("meta"):
        report = profile(timm.create_model(name), torch.zeros(1, 3, 224, 224))
    assert report.params == params
    assert round(report.conv_fc / 1e6, 1) == conv_fc
    assert round(report.thop / 1e6, 1) == thop
    assert report.exact == report.conv_fc + report.macs["elementwise"]
    gates = [m for m in report.modules if m.type == "SqueezeExcite"]
    assert sum(m.macs["elementwise"] for m in gates) == report.macs["elementwise"]


def test_thop_pools():
    x = torch.zeros(2, 4, 6, 6)
    assert profile(nn.AvgPool2d(2), x).thop == 2 * 4 * 9
    assert profile(nn.AdaptiveAvgPool2d(1), x).thop == 2 * 4 * (36 + 1)
    assert profile(nn.AdaptiveAvgPool2d(3), x).thop == 2 * 4 * 9 * (4 + 1)
    assert profile(timm.layers.SelectAdaptivePool2d(pool_type="fast", flatten=True), x).thop == 2 * 4 * 37
    assert profile(Fn(lambda h: h.mean((2, 3))), x).thop == 0
    assert profile(nn.MaxPool2d(2), x).thop == 0


@pytest.mark.parametrize("name, depth", [("resnet18", 18), ("resnet50", 50), ("vgg11", 11)])
def test_depth_is_the_number_in_the_name(name, depth):
    with torch.device("meta"):
        model = timm.create_model(name)
        assert profile(model, torch.zeros(1, 3, 224, 224)).depth == depth


def test_peak_and_written_bytes_by_hand():
    x = torch.zeros(1, 4, 8, 8)  # 1 KiB
    kib = 1024
    chain = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(5)))
    report = profile(chain, x)
    assert report.activation_bytes == 5 * kib
    assert report.peak_bytes == 3 * kib  # the caller's input, one layer's input and its output
    assert profile(nn.Sequential(nn.ReLU(inplace=True), nn.Flatten()), x).activation_bytes == 0
    kept = profile(Fn(lambda h: torch.stack([h + i for i in range(3)])), x)
    assert kept.peak_bytes == (1 + 3 + 3) * kib
    meta = profile(chain.to("meta"), x.to("meta"))
    assert (meta.activation_bytes, meta.peak_bytes) == (report.activation_bytes, report.peak_bytes)


def test_unused_parameters_are_reported():
    model = nn.Sequential(nn.Linear(3, 3))
    model.add_module("head", nn.Identity())
    model[0].spare = nn.Linear(5, 5)
    report = profile(model, torch.zeros(1, 3))
    assert (report.params, report.unused_params) == (12 + 30, 30)
    assert "30 that were not used" in report.summary()


def test_all_that_is_not_counted_is_listed_by_name():
    report = profile(Fn(lambda h: torch.erfinv(torch.tanh(torch.cat([h, h]).view(-1))).sum()), torch.zeros(1, 3))
    reasons = {u.op: u.reason for u in report.not_counted}
    assert reasons == {
        "aten::cat": "moves data",
        "aten::tanh": "activation function",
        "aten::erfinv": "no formula",
        "aten::sum": "additions and comparisons only",
    }
    assert all(op in str(report) for op in reasons)
    assert "nothing" in profile(nn.Identity(), torch.zeros(1)).summary()


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Conv2d(3, 3, 1))
    model[1].eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    profile(model, torch.randn(4, 3, 2, 2))
    assert [m.training for m in model.modules()] == [True, True, False, True]
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_hooks_are_removed_and_flags_restored_when_the_model_fails():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(4, 4))
    with pytest.raises(RuntimeError, match="shapes"):
        profile(model, torch.zeros(1, 3))
    assert model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_report_reads_the_same_as_dict_json_csv_and_table():
    report = profile(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)), torch.zeros(1, 3, 3, 3)
    )
    d = json.loads(json.dumps(report.to_dict()))
    assert d["macs"]["exact"] == report.exact == 108 + 8
    assert d["params"] == report.params
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [r["name"] for r in rows] == ["", "0", "1", "2", "3"]
    assert sum(int(r["macs_exact"]) for r in rows) == report.exact
    assert sum(int(r["params"]) for r in rows) == report.params
    text = str(report)
    assert "MACs thop" in text
    assert "Conv2d" in text
    assert "FLOP" not in text
    page = report._repr_html_()
    assert page.startswith("<table>")
    assert ">Conv2d</td>" in page
    assert "MACs exact           116" in page


def test_csv_file(tmp_path):
    report = profile(nn.Linear(2, 2), torch.zeros(1, 2))
    report.to_csv(tmp_path / "cost.csv")
    assert (tmp_path / "cost.csv").read_text() == report.to_csv()


def test_report_is_frozen():
    report = profile(nn.Linear(2, 2), torch.zeros(1, 2))
    assert isinstance(report, CostReport)
    with pytest.raises(AttributeError, match="cannot assign"):
        report.depth = 3


def test_mistakes_are_named():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        profile(lambda x: x, torch.zeros(1))
    with pytest.raises(TypeError, match="must be a Tensor, or a tuple, list or dict, got str"):
        profile(nn.Identity(), "1x3")
    with pytest.raises(ValueError, match="no module 'fc'"):
        profile(nn.Linear(2, 2), torch.zeros(1, 2)).subtree("fc")


def test_a_single_multiplication_is_a_whole_mac(monkeypatch):
    from torch.utils import flop_counter

    monkeypatch.setitem(flop_counter.flop_registry, torch.ops.aten.relu, lambda *a, out_val=None, **k: 3)
    assert macs_of(torch.ops.aten.relu, torch.zeros(1), (torch.zeros(1),), {}) == 2


def solve(K, diffusivity):
    from pdecnn.functional import advection_diffusion

    return Fn(lambda h: advection_diffusion(h, h, h, diffusivity(h), diffusivity(h), h, K=K))


@pytest.mark.parametrize("K", [1, 4])
def test_pde_steps_are_counted_from_the_operator(K):
    h = torch.zeros(2, 3, 4, 5)
    learned, constant = solve(K, lambda h: h), solve(K, lambda h: 1.0)
    for model, setup in ((learned, 14), (constant, 4)):
        report = profile(model, h)
        assert report.macs == {**dict.fromkeys(KINDS, 0), "pde": (6 * K + setup) * h.numel()}
        assert (report.pde_solves, report.depth, report.conv_fc, report.thop) == (1, 1, 0, 0)
        assert report.exact == profile(model, h.to("meta")).exact


def test_published_functions_are_reachable():
    import pdecnn

    assert pdecnn.profile is profile
