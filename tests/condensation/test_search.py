"""Plans for a budget: exact choice, tables of milliseconds as files, harm, and the whole job with all of them."""

import dataclasses
import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_networks import Residual
from torch import nn

import pdecnn
from pdecnn.condensation.choose import Choice, best_combinations
from pdecnn.condensation.fit import answer_distance, recalibrate
from pdecnn.condensation.harm import measure_harms
from pdecnn.condensation.latency import LatencyTable, Site, measure_sites, without_blocks
from pdecnn.condensation.propose import BudgetError, predicted
from pdecnn.condensation.replacements import choice_of
from pdecnn.condensation.search import CHOICES, Proposal, propose_plans
from pdecnn.condensation.site import Cost, Run
from pdecnn.condensation.within import BATCHES, FEWEST, JUDGES, calibration
from pdecnn.shared.reading import FileError
from pdecnn.training.batches import as_loaders

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 3, 10, 10, generator=G), torch.randint(0, 3, (48,), generator=G)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    stages = [nn.Sequential(*(Residual(w, w, 1, False, True) for _ in range(n))) for w, n in ((8, 4), (8, 3))]
    down = nn.Conv2d(8, 8, 3, 2, 1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), stages[0], down, nn.ReLU(), stages[1], nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 3),
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def made(net):
    return pdecnn.plan(net, X[:1])


@pytest.fixture(scope="module")
def harms(net, made):
    return measure_harms(made, net, [X[:16], X[16:32]], X[32:], CHOICES)


def table_of(made) -> LatencyTable:
    layers = {"nothing": 0.0, "depthwise": 0.1, "separable": 0.3, "pde K=1": 0.3, "pde": 0.3, "paper": 50.0}
    sites = {run.path: Site(1.0 + i, dict(layers)) for i, run in enumerate(made.runs)}
    return LatencyTable("eager", made.model, made.input_shapes, 1, "a device", 12.0, sites)


@given(
    st.lists(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 9)), min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(0, 25),
)
@settings(deadline=None, max_examples=60)
def test_the_choice_is_that_of_trying_everything(groups, limit):
    run = Run("chain", "", (("0",), ("1",)), 1, "Block", (1, 2, 2), costs=(Cost(), Cost(ms=10.0)))
    choices = [
        [Choice(dataclasses.replace(run, layer_cost=Cost(ms=float(ms))), harm) for harm, ms in group]
        for group in groups
    ]
    total = Cost(ms=10.0 * len(groups))
    all_of_them = [c for c in itertools.product(*choices) if sum(x.run.layer_cost.ms for x in c) <= limit]
    wanted = sorted(sum(x.harm for x in c) for c in all_of_them)[:3]
    found = best_combinations(choices, total, {"ms": float(limit)}, count=3)
    assert [sum(x.harm for x in c) for c in found] == pytest.approx(wanted, abs=1e-6)
    for combination in found:
        assert predicted(total, [c.run for c in combination]).ms <= limit + 1e-6


def test_a_table_is_measured_saved_and_read(net, made, tmp_path):
    table = measure_sites(made, net, X[:1], runtime="eager", replacements=("pde",), rounds=3)
    assert set(table.sites) == {run.path for run in made.runs}
    assert all(set(site.layers) == {"nothing", "pde"} and site.layers["nothing"] == 0 for site in table.sites.values())
    assert LatencyTable.load(table.save(tmp_path / "latency.json")) == table
    run = table.with_ms(made.runs[0])
    site = table.of(run)
    assert run.before.ms == pytest.approx(len(run.units) * site.block)
    assert run.after.ms == pytest.approx(run.keep * site.block + site.layers["pde"])
    with pytest.raises(ValueError, match="was not measured with the replacement 'paper K=3'"):
        table.with_ms(dataclasses.replace(made.runs[0], replacement="paper"))
    with pytest.raises(ValueError, match=r"no run 'x\.0-1'; there are"):
        table.of(dataclasses.replace(made.runs[0], parent="x", units=(("0",), ("1",)), costs=()))


@pytest.mark.parametrize("limit, found", [(9.0, []), (10.0, [[]])])
def test_where_there_is_nothing_to_choose_the_whole_fits_or_not(limit, found):
    assert best_combinations([], Cost(ms=10.0), {"ms": limit}, count=3) == found


@pytest.mark.parametrize(
    "replacement, K, entries",
    [
        ("pde", 2, {"nothing", "pde K=1", "pde K=2", "paper"}),
        ("pde", 1, {"nothing", "pde K=1", "paper"}),
        ("paper", 1, {"nothing", "pde K=1", "pde", "paper K=1"}),
    ],
)
def test_a_table_names_the_steps_that_were_timed(net, replacement, K, entries):
    made = pdecnn.plan(net, X[:1], replacement=replacement, K=K)
    table = measure_sites(made, net, X[:1], runtime="eager", replacements=("pde K=1", "pde", "paper"), rounds=3)
    assert [set(site.layers) for site in table.sites.values()] == [entries] * 2
    assert all(table.with_ms(run).layer_cost.ms is not None for run in made.runs)


def test_runs_that_keep_all_their_blocks_are_not_timed(net, made):
    whole, short = (run.path for run in made.runs)
    table = measure_sites(made.edit(whole, keep=4), net, X[:1], runtime="eager", replacements=("pde",), rounds=3)
    assert set(table.sites) == {short}


@pytest.mark.parametrize("wishes", [{"K": 2}, {"replacement": "paper", "K": 1}], ids=str)
def test_steps_that_are_not_the_usual_ones_are_searched_too(net, tmp_path, wishes):
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path}
    pdecnn.condense(net, X[:1], **arguments, **wishes, budget={"latency_ms": "95%"}, runtime="eager")
    searched = json.loads((tmp_path / "search.json").read_text())["candidates"]
    kept = [sum(run["keep"] for run in row["runs"].values()) for row in searched]
    assert any(not row["inner"] and n < 7 for row, n in zip(searched, kept, strict=True))  # blocks alone


def test_only_a_budget_that_cannot_be_met_is_left_to_other_plans(net, made, monkeypatch):
    from pdecnn.condensation import within

    def tried(way, *args, **further):
        if way.width == 1:
            raise error
        return [Proposal(way, 0.0)]

    monkeypatch.setattr(within, "propose_plans", tried)
    narrower = dataclasses.replace(made, width=0.5)
    known = within.Measured((made, narrower), None, {}, (), [], None, [])
    arguments = (known, net, X[:1], {"params": "60%"})
    error = BudgetError("too little")
    assert [p.plan for p in within.propose_candidates(*arguments, measured=False, progress=None)] == [narrower]
    error = ValueError("a defect")
    with pytest.raises(ValueError, match="a defect"):
        within.propose_candidates(*arguments, measured=False, progress=None)


@given(st.floats(0.5, 11.9))
@settings(deadline=None, max_examples=30)
def test_an_anchored_table_predicts_the_net_without_its_blocks_and_that_with_all(made, ms):
    table = table_of(made).anchored(made.runs, ms)
    bare = [table.with_ms(run) for run in without_blocks(made).runs]
    total = table.total(made.before)
    assert predicted(total, bare).ms == pytest.approx(ms)
    assert predicted(total, [dataclasses.replace(run, keep=len(run.units)) for run in bare]).ms == pytest.approx(12.0)
    one = [dataclasses.replace(run, keep=run.keep if i else len(run.units)) for i, run in enumerate(bare)]
    assert ms < predicted(total, one).ms < 12.0
    first, second = table.sites.values()
    assert second.block == pytest.approx(2 * first.block)  # each to its share, as measured


def test_a_clock_that_finds_no_gain_leaves_the_table_as_it_is(made):
    assert table_of(made).anchored(made.runs, 12.5) == table_of(made)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"format": "other"}, "expected a latency table"),
        ({"ms": "fast"}, "ms"),
        ({"site": {}}, "has no entry 'site'"),
    ],
)
def test_a_damaged_table_is_refused_by_name(made, tmp_path, change, message):
    file = table_of(made).save(tmp_path / "latency.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(FileError, match=message):
        LatencyTable.load(file)


@pytest.mark.parametrize("i", [0, 1])  # before the second there is a run that is remembered
def test_harm_is_the_distance_of_the_answers_without_these_blocks(net, made, harms, i):
    run = made.runs[i]
    assert list(harms) == [r.path for r in made.runs]
    assert all(len(v) == len(r.units) - 1 for r in made.runs for v in harms[r.path].values())
    copy = pdecnn.Plan(made.model, made.input_shapes, (dataclasses.replace(run, keep=2, replacement="nothing"),))
    student = copy.apply(net)
    assert sum(isinstance(m, Residual) for m in student.modules()) == 2 + (3, 4)[i]
    recalibrate(student, run.site, [X[:16], X[16:32]])
    with torch.no_grad():
        wanted = answer_distance(student.eval()(X[32:]), net(X[32:]))
    assert harms[run.path]["nothing"][1] == pytest.approx(wanted, rel=1e-5)
    for values in harms.values():
        assert all(0 <= a <= b + 1e-9 for name in values for a, b in zip(values[name], values["nothing"], strict=True))


def test_a_choice_that_takes_longer_than_a_block_is_not_tried(net, made, tmp_path):
    file = table_of(made).save(tmp_path / "device.json")
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path / "job"}
    pdecnn.condense(net, X[:1], **arguments, budget={"latency_ms": 11.0}, latency_table=file)
    tried = json.loads((tmp_path / "job" / "harms.json").read_text())
    assert [set(values) for values in tried.values()] == [{*CHOICES} - {"paper"}] * 2


def test_the_trials_take_half_as_many_steps_as_the_job(net, tmp_path, monkeypatch):
    from pdecnn.condensation import within

    real, lengths = within.distill, []

    def noted(student, teacher, data, **options):
        lengths.append((len(data.train), len(list(data.train.batches(0))), len(list(data.train.batches(0, 1)))))
        return real(student, teacher, data, **options)

    monkeypatch.setattr(within, "distill", noted)
    batches = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 48, 4)]
    arguments = {"epochs": 1, "fit": {"steps": 1}, "quiet": True, "budget": {"params": "70%"}, "width": 1.0}
    pdecnn.condense(net, X[:1], train=batches, **arguments, output=tmp_path)
    assert lengths == [(2, 2, 1)] * 3  # of 12


def test_the_plans_are_within_the_budget_and_the_best_is_first(net, made, harms):
    table = table_of(made)
    found = propose_plans(made, net, X[:1], {"latency_ms": "60%"}, harms, table, measured=False)
    assert len(found) == 3
    assert [p.harm for p in found] == sorted(p.harm for p in found)
    assert all(p.predicted_ms <= 0.6 * 12.0 for p in found)
    assert not any(run.replacement == "paper" and run.condenses for p in found for run in p.plan.runs)  # it takes 50 ms
    best = found[0].plan.apply(net)
    assert best(X).shape == (48, 3)
    with pytest.raises(ValueError, match=r"the budget latency_ms=1% cannot be met: at least latency_ms="):
        propose_plans(made, net, X[:1], {"latency_ms": "1%"}, harms, table, measured=False)


def test_parameters_need_no_clock(net, made, harms):
    (first, *_) = propose_plans(made, net, X[:1], {"params": "50%"}, harms)
    small = first.plan.apply(net)
    assert sum(p.numel() for p in small.parameters()) == first.plan.after.params <= made.before.params // 2


def test_the_whole_job_searches_says_what_it_chose_and_knows_the_null(net, tmp_path):
    arguments = {
        "train": [(X[:24], Y[:24]), (X[24:], Y[24:])], "val": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True,
        "budget": {"latency_ms": "90%"}, "runtime": "eager", "null": True, "output": tmp_path,
    }  # fmt: skip
    small, report = pdecnn.condense(net, X[:1], **arguments)
    searched = json.loads((tmp_path / "search.json").read_text())
    chosen = searched["candidates"][searched["chosen"]]["runs"]
    assert chosen == {r.path: {"keep": r.keep, "of": len(r.units), "choice": choice_of(r)} for r in report.plan.runs}
    assert {"latency.json", "harms.json", "plan.json"} <= {p.name for p in tmp_path.iterdir()}
    assert not list(tmp_path.glob("trial-*"))
    assert not (tmp_path / "null").exists()
    ms = searched["candidates"][searched["chosen"]]["ms"]
    assert any(f"ms before, {ms:.3f} ms after, measured" in note and "eager" in note for note in report.job.notes)
    layers = any(r.condenses and r.replacement != "nothing" for r in report.plan.runs)
    assert ("null, distilled" in report.accuracies) == layers
    assert any(("the new layers are worth" in note) == layers for note in report.job.notes if "null" in note)
    again, second = pdecnn.condense(net, X[:1], **arguments, resume=True)
    assert second.job == report.job
    assert torch.equal(again.eval()(X), small(X))


def test_a_table_of_another_device_is_taken_as_it_is(net, made, tmp_path):
    values = table_of(made).to_dict()
    for site in values["sites"].values():
        del site["layers"]["pde K=1"]  # as in tables of those who have no use for it
    file = tmp_path / "device.json"
    file.write_text(json.dumps(values))
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path / "job"}
    _, report = pdecnn.condense(net, X[:1], **arguments, budget={"latency_ms": 6.0}, latency_table=file)
    assert report.plan.before.ms == 12.0
    assert report.plan.after.ms <= 6.0
    assert any("a device: 12.000 ms before" in note and "predicted" in note for note in report.job.notes)
    assert not (tmp_path / "job" / "latency.json").exists()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": "ResNet"}, "measured with model ResNet, not Sequential"),
        ({"input_shapes": ((1, 3, 20, 20),)}, "measured with inputs 1x3x20x20, not 1x3x10x10"),
        ({"runtime": "onnx"}, "measured with runtime onnx, not eager.*--runtime eager"),
    ],
)
def test_a_table_of_something_else_is_refused(net, made, tmp_path, change, message):
    file = dataclasses.replace(table_of(made), **change).save(tmp_path / "device.json")
    arguments = {"train": [(X, Y)], "epochs": 1, "quiet": True, "output": tmp_path / "job", "runtime": "eager"}
    with pytest.raises(ValueError, match=message):
        pdecnn.condense(net, X[:1], **arguments, budget={"latency_ms": 6.0}, latency_table=file)


@pytest.mark.parametrize(
    "wishes, message",
    [
        ({"replacement": "separable"}, "replacement 'separable'; there are .*--replacement separable --output plans"),
        ({"K": 2}, "replacement 'pde K=2'; there are .*--replacement pde --K 2 --output plans"),
    ],
)
def test_what_was_named_but_not_timed_is_refused(net, made, tmp_path, wishes, message):
    table = table_of(made)
    for site in table.sites.values():
        del site.layers["separable"]
    file = table.save(tmp_path / "device.json")
    arguments = {"train": [(X, Y)], "epochs": 1, "quiet": True, "output": tmp_path / "job", **wishes}
    with pytest.raises(ValueError, match=message):
        pdecnn.condense(net, X[:1], **arguments, budget={"latency_ms": 6.0}, latency_table=file)


def test_one_replacement_may_be_asked_for(net, tmp_path):
    arguments = {"train": [(X, Y)], "epochs": 1, "fit": {"steps": 1}, "quiet": True, "output": tmp_path}
    _, report = pdecnn.condense(net, X[:1], **arguments, budget={"params": "60%"}, replacement="separable")
    assert {r.replacement for r in report.plan.runs if r.condenses} <= {"nothing", "separable"}


def test_a_job_that_is_killed_while_it_searches_goes_on_with_the_same_plans(net, tmp_path, monkeypatch):
    from pdecnn.condensation import within

    arguments = {
        "train": [(X[:24], Y[:24]), (X[24:], Y[24:])], "epochs": 1, "fit": {"steps": 1}, "quiet": True,
        "budget": {"params": "70%"}, "output": tmp_path,
    }  # fmt: skip
    real, calls = within.distill, []

    def killed(*args, **kwargs):
        calls.append(kwargs["run_dir"])
        if len(calls) == 2:
            raise KeyboardInterrupt  # the process ends in the second trial
        return real(*args, **kwargs)

    monkeypatch.setattr(within, "distill", killed)
    with pytest.raises(KeyboardInterrupt):
        pdecnn.condense(net, X[:1], **arguments)
    kept = {name: (tmp_path / name).read_bytes() for name in ("harms.json", "candidates.json")}
    monkeypatch.setattr(within, "distill", real)
    small, report = pdecnn.condense(net, X[:1], **arguments, resume=True)
    assert (tmp_path / "harms.json").read_bytes() == kept["harms.json"]
    plans = [p["plan"] for p in json.loads(kept["candidates.json"])["plans"]]
    assert report.plan.to_dict() in plans
    assert not (tmp_path / "candidates.json").exists()
    other, again = pdecnn.condense(net, X[:1], **{**arguments, "output": tmp_path / "whole"})
    assert again.plan == report.plan
    assert torch.equal(other.eval()(X), small.eval()(X))


def test_trials_are_judged_by_images_that_nothing_was_fitted_to(net, made):
    heavy = dataclasses.replace(made, before=Cost(macs=10**12))  # so that a search looks at the fewest images
    images = torch.arange(float((BATCHES + 1) * 32)).view(-1, 1, 1, 1)  # every image is a number of its own
    loaders = as_loaders([(x, torch.zeros(32, dtype=torch.int64)) for x in images.split(32)], None)
    inputs, held, judges = calibration(loaders, net, heavy)
    assert [len(x) for x in (*inputs, held)] == [FEWEST] * (BATCHES + 1)
    fitted, looked_at = ({v.item() for x in part for v in x} for part in (inputs, judges))
    assert not fitted & looked_at
    assert judges[0] is held
    assert len(judges) == JUDGES + 1
    assert len(looked_at) == sum(map(len, judges)) > 4 * FEWEST


def test_images_of_several_sizes_judge_too(net, made):
    heavy = dataclasses.replace(made, before=Cost(macs=10**12))
    sizes = [torch.zeros(20, 3, 8, 8), torch.zeros(20, 3, 8, 12)]
    loaders = as_loaders([(x, torch.zeros(20, dtype=torch.int64)) for x in sizes], None)
    _, held, judges = calibration(loaders, net, heavy)
    assert held.shape == (FEWEST, 3, 8, 12)
    assert [tuple(x.shape[2:]) for x in judges] == [(8, 12), (8, 8), (8, 12)]
