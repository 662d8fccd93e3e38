"""Fewer inner channels: found, cut, chosen and made up for by least squares, planned, saved, searched for."""

import copy
import dataclasses
import itertools
import json
import subprocess
import sys
from functools import cache

import pytest
import timm
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planted_networks import Hidden
from planted_networks import with_hidden as net
from torch import nn

import pdecnn
from pdecnn.condensation.distill import inner_blocks
from pdecnn.condensation.fit import answer_distance, fit_layers
from pdecnn.condensation.inner import Inner, cut_inner, eliminate, find_inner, fit_inner
from pdecnn.condensation.places import between, choices_of, measure_places, numbers, share_out
from pdecnn.condensation.search import propose_plans
from pdecnn.condensation.site import Cost
from pdecnn.shared.reading import FileError
from pdecnn.training.batches import as_loaders
from pdecnn.training.progress import Reporter

pytest.importorskip("torch_pruning", reason="the extra `prune` is not installed")

X = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.arange(16) % 4
LOADERS = as_loaders([(X, Y)], None, batch_size=16, seed=0)


def distance(model, other):
    with torch.no_grad():
        return answer_distance(model(X), other(X))


def test_inner_channels_are_those_that_one_layer_reads():
    found = find_inner(net(), (X[:1],), 0.7)
    assert found == tuple(Inner(f"{i}.expand", (f"{i}.norm", f"{i}.spread"), f"{i}.project", 24, 16) for i in (1, 2))


@pytest.mark.parametrize(
    "name, count, first",
    [
        ("resnet18", 8, "layer1.0.conv2"),
        ("resnet50", 32, "layer1.0.conv2"),
        ("tf_efficientnet_lite0", 16, "blocks.0.0.conv_pw"),  # neither bottlenecks nor what the classifier reads
        ("convnext_atto", 12, "stages.0.blocks.0.mlp.fc2"),
        ("efficientnet_b0", 0, ""),  # what squeezes and excites reads them too
        ("regnetx_002", 0, ""),  # groups
    ],
)
def test_known_networks_have_inner_channels_where_their_blocks_do(name, count, first):
    model = timm.create_model(name).eval()
    x = torch.randn(1, 3, 64, 64)
    found = find_inner(model, (x,), 0.5)
    assert len(found) == count
    assert not found or found[0].last == first
    small = cut_inner(model, found)
    assert small(x).shape == (1, 1000)
    for one in found:
        assert small.get_submodule(one.last).weight.shape[1] == one.keep
        assert one.keep % 8 == 0


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**20))
def test_elimination_gives_the_least_squares_of_what_stays(channels, m, outputs, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(60, channels * m, generator=g, dtype=torch.float64)
    y = torch.randn(60, outputs, generator=g, dtype=torch.float64)
    keeps = range(channels, 0, -1)

    def error(columns, weights):
        return float((z[:, columns] @ weights - y).square().sum())

    least = error(slice(None), torch.linalg.lstsq(z, y).solution)
    for keep, found in zip(keeps, eliminate(z.T @ z, z.T @ y, channels, keeps), strict=True):
        columns = (found.stay[:, None] * m + torch.arange(m)).flatten()
        direct = torch.linalg.lstsq(z[:, columns], y).solution
        torch.testing.assert_close(found.weights, direct, atol=1e-8, rtol=1e-6)
        assert len(found.stay) == keep
        assert found.error == pytest.approx(error(columns, direct) - least, abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.integers(1, 2), st.integers(0, 2**20))
def test_the_channel_that_goes_first_is_the_one_missed_least(channels, m, seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(40, channels * m, generator=g, dtype=torch.float64)
    y = torch.randn(40, 2, generator=g, dtype=torch.float64)

    def error(stay):
        columns = (torch.tensor(stay)[:, None] * m + torch.arange(m)).flatten()
        return float((z[:, columns] @ torch.linalg.lstsq(z[:, columns], y).solution - y).square().sum())

    (found,) = eliminate(z.T @ z, z.T @ y, channels, [channels - 1])
    best = min(itertools.combinations(range(channels), channels - 1), key=error)
    assert tuple(found.stay.tolist()) == best


@pytest.mark.parametrize("kernel, bias", [(1, False), (1, True), (3, False), (3, True)])
def test_channels_that_repeat_others_are_not_missed(kernel, bias):
    """Every hidden channel is there twice: half of them give the same answers, if the weights are made up for."""
    model = net(24, kernel, bias)
    for block in (model[1], model[2]):
        with torch.no_grad():
            for part in (block.expand, block.norm, block.spread):
                for value in (*part.parameters(), *part.buffers()):
                    if value.ndim:
                        value[12:] = value[:12]
    inner = [Inner(f"{i}.expand", (f"{i}.norm", f"{i}.spread"), f"{i}.project", 24, 12) for i in (1, 2)]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    solved = fit_inner(model, inner, [X[:8], X[8:]])
    assert distance(solved, model) < 1e-6 < 1e-4 < distance(cut_inner(model, inner), model)
    assert solved[1].project.in_channels == solved[1].spread.groups == solved[1].norm.num_features == 12
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_solving_is_nearer_to_the_model_than_cutting():
    model = timm.create_model("cifar_resnet32", num_classes=4).eval()
    inner = find_inner(model, (X[:1],), 0.5)
    assert distance(fit_inner(model, inner, [X]), model) < 0.5 * distance(cut_inner(model, inner), model)


def test_the_plan_counts_what_it_makes_and_says_so(tmp_path):
    model = timm.create_model("cifar_resnet32").eval()
    made = pdecnn.plan(model, X[:1], inner=0.5)
    student = made.apply(model)
    assert sum(p.numel() for p in student.parameters()) == made.after.params
    assert made.before.params == sum(p.numel() for p in model.parameters()) > made.narrowed.params > made.after.params
    assert "inner 0.5" in str(made)
    assert pdecnn.Plan.load(made.save(tmp_path / "plan.json")) == made
    wrong = made.to_dict()
    wrong["inner"][0]["keep"] = 99
    with pytest.raises(FileError, match=r"of 16 channels before stages\.0\.0\.conv2 99 cannot stay"):
        pdecnn.Plan.from_dict(wrong)
    with pytest.raises(ValueError, match="made for another model"):
        made.apply(timm.create_model("resnet18"))


@pytest.mark.parametrize("inner", [0, 1.5, True, "half"])
def test_inner_is_a_share(inner):
    with pytest.raises(ValueError, match="inner is the share of channels that stay, above 0 and at most 1; got"):
        pdecnn.plan(net(), X[:1], inner=inner)


def test_a_model_without_inner_channels_is_named():
    with pytest.raises(ValueError, match=r"inner=0\.5, but EfficientNet has no channels that one layer gives"):
        pdecnn.plan(timm.create_model("efficientnet_b0"), torch.zeros(1, 3, 64, 64), inner=0.5)


def test_a_student_without_fewer_blocks_is_planned_saved_and_loaded_without_torch_pruning(tmp_path):
    torch.manual_seed(0)
    teacher = timm.create_model("cifar_resnet32", num_classes=4).eval()
    made = pdecnn.plan(teacher, X[:1], keep=5, inner=0.5)
    assert not made.runs
    student = made.apply(teacher)
    start = distance(student.eval(), teacher)
    assert fit_layers(student, teacher, made, [X]) == []
    assert distance(student.eval(), teacher) < start
    pdecnn.distill(student, teacher, [(X, Y)], epochs=1, reporter=Reporter())
    pdecnn.save(student, tmp_path / "student")
    with torch.no_grad():
        torch.save(student.eval()(X), tmp_path / "answer.pt")
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import sys; sys.modules['torch_pruning'] = None\n"
        "import torch, pdecnn; model = pdecnn.load('student').eval()\n"
        "with torch.no_grad(): torch.testing.assert_close(model(torch.load('x.pt')), torch.load('answer.pt'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]


def test_new_layers_are_fitted_to_the_blocks_of_the_whole_model():
    torch.manual_seed(0)
    teacher = timm.create_model("cifar_resnet32", num_classes=4).eval()
    made = pdecnn.plan(teacher, X[:1], inner=0.5)
    student = made.apply(teacher)
    fitted = fit_layers(student, teacher, made, [X], steps=1)
    assert [f.site for f in fitted] == [run.site for run in made.runs]
    solved = fit_inner(teacher, made.inner, [X[:12]])  # a quarter is held out
    kept = "stages.0.0.conv2.weight"
    torch.testing.assert_close(student.state_dict()[kept], solved.state_dict()[kept])


def test_the_numbers_of_channels_fill_vectors():
    assert numbers(480) == [416, 352, 288, 240, 176, 112]
    assert numbers(64) == [48, 32, 16]
    assert numbers(40) == [32, 24, 16, 8]
    assert numbers(8) == []


def test_what_a_place_saves_and_harms_is_what_the_model_without_its_channels_does():
    model, inputs, held = net(48, count=3, bias=True), [X[:6], X[6:11]], X[11:]
    places = measure_places(model, X[:1], inputs, held)
    assert [p.inner.last for p in places] == ["1.project", "2.project", "3.project"]
    all_of_them = pdecnn.profile(cut_inner(model, [p.inner for p in places]), X[:1])
    whole = pdecnn.profile(model, X[:1])
    assert sum(p.saved.params for p in places) == whole.params - all_of_them.params
    assert sum(p.saved.macs for p in places) == pytest.approx(whole.exact - all_of_them.exact, rel=0.02)
    for place in places:
        harms = [harm for _, harm in place.harms]
        assert harms == sorted(harms)
        half = dataclasses.replace(place.inner, keep=24)
        alone = fit_inner(model, [half], inputs)
        with torch.no_grad():
            assert dict(place.harms)[24] == pytest.approx(answer_distance(alone(held), model(held)), rel=1e-3)
        most, *fewer = choices_of(place)
        assert (most.inner.keep, most.harm, most.saved) == (48, 0.0, Cost())
        assert [c.inner.keep for c in fewer] == [40, 32, 24, 16, 8]
        assert fewer[-1].saved == place.saved
        assert fewer[2].saved.params == pytest.approx(place.saved.params * 24 / 40, abs=1)
    assert measure_places(nn.Sequential(nn.Conv2d(3, 4, 3)), X[:1], inputs, held) == ()


def test_milliseconds_are_shared_out_as_places_alone_save_and_sum_up():
    saved = [Cost(1, 30), Cost(1, 10), Cost(1, 10)]
    places = [Inner("", (), name, 16, 8) for name in "abc"]

    def shared(times, whole):
        return [c.ms for c in share_out(saved, times, ["a", "bc"], places, whole)]

    assert shared({"": 10.0, "all": 6.0, "a": 9.5, "b": 8.5}, 20.0) == pytest.approx([2.0, 3.0, 3.0])
    assert shared({"": 10.0, "all": 5.0}, 10.0) == pytest.approx([3.0, 1.0, 1.0])
    assert shared({"": 10.0, "all": 11.0, "a": 9.0}, 10.0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("asked", [0.9, 0.7, 0.5])
def test_blocks_and_inner_channels_are_chosen_together_as_trying_everything_does(asked):
    """Three blocks and their places: what goes with a block is not taken out of it too."""
    model = net(32, count=3)
    full = pdecnn.plan(model, X[:1], replacement="nothing")
    (run,) = full.runs
    places = measure_places(model, X[:1], [X[:8]], X[8:])
    a_place = max(harm for place in places for _, harm in place.harms)
    harms = {run.path: {"nothing": [2 * a_place, 0.5 * a_place]}}
    (found,) = propose_plans(full, model, X[:1], {"macs": f"{asked:%}"}, harms, places=places, count=1)

    def all_of_them():
        for keep, harm in ((3, 0.0), (2, 0.5 * a_place), (1, 2 * a_place)):
            options = [choices_of(p) if i < keep else choices_of(p)[:1] for i, p in enumerate(places)]
            for combination in itertools.product(*options):
                gone = sum(cost.macs for cost in run.costs[keep:])
                macs = full.before.macs - gone - sum(c.saved.macs for c in combination)
                if macs <= asked * full.before.macs:
                    yield harm + sum(c.harm for c in combination)

    assert found.harm == pytest.approx(min(all_of_them()), rel=1e-5)
    student = found.plan.apply(model)
    assert sum(p.numel() for p in student.parameters()) == found.plan.after.params
    assert pdecnn.profile(student, X[:1]).exact == pytest.approx(found.plan.after.macs, rel=0.01)
    assert found.plan.after.macs <= 1.01 * asked * full.before.macs
    kept = sum(isinstance(m, Hidden) for m in student.modules())
    assert {one.last.split(".")[0] for one in found.plan.inner} <= {str(i) for i in range(1, kept + 1)}


class Unskipped(nn.Sequential):
    """Convolutions, norms and activations, and no skip: what one block gives the next alone reads."""


def plain() -> nn.Module:
    torch.manual_seed(2)
    blocks = [Unskipped(nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU()) for _ in range(4)]
    stem, head = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 16, 3, padding=1)
    rest = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)]
    return nn.Sequential(stem, nn.Sequential(*blocks), nn.ReLU(), head, nn.ReLU(), *rest).eval()


def bare() -> nn.Module:
    torch.manual_seed(2)
    convs = [nn.Conv2d(24, 24, 3, padding=1) for _ in range(5)]
    rest = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4)]
    return nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.Sequential(*convs), *rest).eval()


class Narrow(nn.Module):
    """A bottleneck: the layer in the middle reads inner channels and gives others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Conv2d(32, 24, 1), nn.Conv2d(24, 24, 3, padding=1), nn.Conv2d(24, 32, 1)

    def forward(self, x):
        return x + self.last(torch.relu(self.middle(torch.relu(self.first(x)))))


def bottlenecks() -> nn.Module:
    torch.manual_seed(2)
    rest = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 4)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Sequential(*(Narrow() for _ in range(4))), *rest).eval()


def mobilenet() -> nn.Module:
    torch.manual_seed(2)
    return timm.create_model("mobilenetv2_035", num_classes=4).eval()


@cache
def places_of(make):
    x = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return measure_places(make(), x[:1], [x[:4]], x[4:])


@pytest.mark.parametrize("replacement", ["nothing", "depthwise"])
@pytest.mark.parametrize("make", [plain, bare, bottlenecks, mobilenet])
def test_plans_of_blocks_and_inner_channels_run_and_are_within_their_budgets(make, replacement):
    model, places, x = make(), places_of(make), torch.zeros(2, 3, 32, 32)
    full = pdecnn.plan(model, x[:1], replacement=replacement)
    a_place = max(harm for place in places for _, harm in place.harms)
    some = {run.path: {replacement: [a_place / (1 + i) for i in range(len(run.removed))]} for run in full.runs}
    met = []
    for (kind, harms), share in itertools.product([("params", some), ("macs", some), ("params", {})], (0.9, 0.7, 0.5)):
        try:
            (found,) = propose_plans(full, model, x[:1], {kind: f"{share:%}"}, harms, places=places, count=1)
        except ValueError:  # too little for what may go
            continue
        student = found.plan.apply(model).eval()
        assert student(x).shape == (2, 4)
        cost = pdecnn.profile(student, x[:1])
        assert {"params": cost.params, "macs": cost.exact}[kind] <= share * getattr(full.before, kind)
        assert found.harm >= 0
        met.append(bool(found.plan.inner))
    assert len(met) >= 5
    assert any(met)


def test_a_layer_that_two_places_share_is_counted_once():
    model, places = bottlenecks(), places_of(bottlenecks)
    assert len(places) == 8
    fewest = pdecnn.profile(cut_inner(model, [p.inner for p in places]), torch.zeros(1, 3, 32, 32)).params
    saved = sum(p.saved.params for p in places)
    assert sum(p.numel() for p in model.parameters()) - fewest == pytest.approx(saved, abs=len(places))


def test_channels_that_nothing_reads_harm_nothing_until_others_go():
    model = net(32, count=1)
    with torch.no_grad():
        model[1].project.weight[:, 12:] = 0
    (place,) = measure_places(model, X[:1], [X[:8]], X[8:])
    harms = dict(place.harms)
    assert all(0 <= harms[n] < 1e-6 for n in (24, 16))
    alone = fit_inner(model, [dataclasses.replace(place.inner, keep=8)], [X[:8]])
    with torch.no_grad():
        assert harms[8] == pytest.approx(answer_distance(alone(X[8:]), model(X[8:])), rel=1e-3)
    assert harms[8] > 10 * harms[16]


def test_a_model_without_finite_answers_has_no_places():
    model = net(32, count=2)
    with torch.no_grad():
        model[-1].bias.fill_(float("nan"))
    assert measure_places(model, X[:1], [X[:8]], X[8:]) == ()


@example([0.0, 5e-324, 1.0], [5.0, 0.0])
@example([0.0, 0.0, 0.0], [0.1, 0.2])
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.lists(st.floats(0, 5), min_size=2, max_size=2))
def test_harms_between_those_measured_grow_with_the_error(errors, measured):
    errors = sorted(errors)
    found = between(dict(zip((12, 8, 4), errors, strict=True)), {8: measured[0], 4: measured[1]})
    assert 0 <= found[12] <= found[8] <= found[4] <= max(measured)


def test_a_budget_that_neither_blocks_nor_channels_can_meet_says_what_is_needed():
    model = net(32, count=3)
    full = pdecnn.plan(model, X[:1], replacement="nothing")
    places = measure_places(model, X[:1], [X[:8]], X[8:])
    harms = {full.runs[0].path: {"nothing": [0.4, 0.1]}}
    least = pdecnn.profile(cut_inner(full.apply(model), [places[0].inner]), X[:1]).params
    with pytest.raises(ValueError, match=rf"at least params={least:,.4g} is needed"):
        propose_plans(full, model, X[:1], {"params": least - 1}, harms, places=places)


def test_a_search_takes_inner_channels_into_account(tmp_path):
    teacher = net(32, 3, count=6)
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path}
    _, report = pdecnn.condense(teacher, X[:1], **arguments, budget={"macs": "70%"}, replacement="nothing")
    rows = json.loads((tmp_path / "search.json").read_text())["candidates"]
    kept = [sum(run["keep"] for run in row["runs"].values()) for row in rows]
    together, *others = rows
    assert together["harm"] <= min(row["harm"] for row in others)
    assert any(row["inner"] and n == 6 for row, n in zip(rows, kept, strict=True))  # inner channels alone
    assert any(not row["inner"] and n < 6 for row, n in zip(rows, kept, strict=True))  # blocks alone
    assert report.plan.after.macs <= 0.7 * report.plan.before.macs


def test_a_budget_of_accuracy_knows_what_fewer_inner_channels_harm(tmp_path):
    arguments = {"train": [(X, Y)], "val": [(X, Y)], "epochs": 1, "quiet": True, "output": tmp_path}
    wishes = {"runtime": "eager", "replacement": "nothing"}
    pdecnn.condense(net(32, 3, count=6), X[:1], **arguments, **wishes, budget={"accuracy": -100})
    tried = json.loads((tmp_path / "search.json").read_text())["tried"]
    assert tried
    assert all(row["harm"] >= 0 for row in tried)


class ByParts(nn.Module):
    """Runs the layers of a list, which as a module is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Conv2d(3, 24, 1), nn.Conv2d(24, 8, 1)])
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

    def forward(self, x):
        for part in self.parts:
            x = torch.relu(part(x))
        return self.head(x)


def test_blocks_with_fewer_inner_channels_learn_their_maps():
    teacher = net()
    model, _ = pdecnn.condense(teacher, X[:1], inner=0.5, data=X)
    assert inner_blocks(model, teacher, LOADERS) == {"1": "1", "2": "2"}
    assert inner_blocks(net(), teacher, LOADERS) == {}
    model.eval()

    def off(student):
        with torch.no_grad():
            return sum(answer_distance(student[: n + 1](X), teacher[: n + 1](X)) for n in (1, 2))

    def after(weight):
        student = copy.deepcopy(model)
        recipe = {"optimizer": {"name": "adamw", "lr": 1e-3}}  # its norms are far from these images: they are kept
        options = {"epochs": 20, "recipe": recipe, "reporter": Reporter(), "weight": 1.0}
        pdecnn.distill(student, teacher, [(X, Y)], feature_weight=weight, **options)
        return off(student.eval())

    assert after(None) == after(1.0) < min(after(0.0), 0.9 * off(model))


def test_modules_that_are_not_run_themselves_are_no_blocks():
    torch.manual_seed(0)
    teacher = ByParts().eval()
    model, _ = pdecnn.condense(teacher, X[:1], inner=0.5, data=X)
    assert inner_blocks(model, teacher, LOADERS) == {}
    before = model.parts[1].weight.detach().clone()
    pdecnn.distill(model, teacher, [(X, Y)], epochs=1, reporter=Reporter())
    assert not torch.equal(model.parts[1].weight, before)


def test_a_search_that_goes_on_does_not_measure_its_places_again(tmp_path, monkeypatch):
    from pdecnn.condensation import within

    arguments = {
        "train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path, "runtime": "eager",
        "budget": {"latency_ms": "80%"}, "replacement": "nothing",
    }  # fmt: skip
    teacher, found, real = net(32, 3, count=6), [], within.measure_places

    def noted(*args, **kwargs):
        found.append(real(*args, **kwargs))
        return found[-1]

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(within, "measure_places", noted)
    with monkeypatch.context() as patch:
        patch.setattr(within, "propose_plans", killed)
        with pytest.raises(KeyboardInterrupt):
            pdecnn.condense(teacher, X[:1], **arguments)
    assert within._places(tmp_path, killed) == found[0] != ()
    pdecnn.condense(teacher, X[:1], **arguments, resume=True)
    assert len(found) == 1
    pdecnn.condense(teacher, X[:1], **{**arguments, "budget": {"macs": "70%"}})
    assert len(found) == 2
