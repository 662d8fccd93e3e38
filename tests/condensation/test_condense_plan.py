"""Plans as data, budgets, and clear errors."""

import dataclasses
import io
import json
import sys

import pytest
import timm
import torch
from planted_networks import Residual
from rich.console import Console
from torch import nn

import pdecnn
from pdecnn.condensation import Plan, propose
from pdecnn.condensation.plan import short
from pdecnn.condensation.propose import choose, predicted
from pdecnn.condensation.site import Cost, Run, Skipped
from pdecnn.layers.blocks import BasicBlock

X = torch.randn(1, 3, 32, 32)


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return timm.create_model("cifar_resnet32")


@pytest.fixture(scope="module")
def made(resnet) -> Plan:
    return pdecnn.plan(resnet, X)


def test_the_predicted_cost_is_the_counted_one(resnet, made):
    before, after = (pdecnn.profile(m, X) for m in (resnet, made.apply(resnet)))
    assert (made.before.params, made.before.macs) == (before.params, before.exact)
    assert (made.after.params, made.after.macs) == (after.params, after.exact)


def test_the_report_tells_the_ratios(resnet):
    small, report = pdecnn.condense(resnet, X, K=3, init="block")
    params = [sum(p.numel() for p in m.parameters()) for m in (resnet, small)]
    assert report.ratios["params"] == pytest.approx(params[0] / params[1])
    assert "stages.1.0-4" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["after"]["params"] == params[1]


def test_a_plan_prints_every_run_and_every_skip(resnet):
    text = str(pdecnn.plan(resnet, X, ignore=["stages.1"]))
    assert "stages.0.0-4" in text
    assert "5 -> 1 + pde K=3" in text
    assert "5 -> 1 + Global K=5" in str(pdecnn.plan(resnet, X, replacement="paper"))
    assert "stages.1.0-4: ignored, as asked" in text


@pytest.mark.parametrize("which", ["stages.1", "stages.1.2", r"stages\.1\.\d", BasicBlock])
def test_runs_are_chosen_by_path_pattern_and_type(resnet, which):
    chosen = pdecnn.plan(resnet, X, only=[which])
    expected = 3 if which is BasicBlock else 1
    assert len(chosen.runs) == expected
    if expected == 1:
        assert chosen.runs[0].path == "stages.1.0-4"
        assert len(pdecnn.plan(resnet, X, ignore=[which]).runs) == 2


def test_a_plan_can_be_edited(resnet, made):
    edited = made.edit("stages.0.0-4", keep=3, K=2).without("stages.2")
    small = edited.apply(resnet)
    assert [(r.path, r.keep, r.K) for r in edited.runs] == [("stages.0.0-4", 3, 2), ("stages.1.0-4", 1, 3)]
    assert small.stages[0][4].branch[0].K == 2
    assert isinstance(small.stages[2][4], BasicBlock)
    with pytest.raises(ValueError, match=r"no run at 'stages.9'; there are stages.0.0-4"):
        made.edit("stages.9", keep=1)
    with pytest.raises(ValueError, match=r"keep must be from 1 to 5, got 9"):
        made.edit("stages.0", keep=9)
    with pytest.raises(ValueError, match="init must be one of"):
        made.edit("stages.0", init="zero")
    with pytest.raises(ValueError, match="K must be an int of at least 1"):
        made.edit("stages.0", K=0)


def repeated(*lengths: int, width: int = 16) -> nn.Module:
    """Runs of blocks in one Sequential, halved in size from run to run."""
    runs = [[*(Residual(width, width, 1, False, True) for _ in range(n)), nn.AvgPool2d(2)] for n in lengths]
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.Sequential(*(m for run in runs for m in run)))


def test_a_container_of_two_runs_is_not_a_name_for_the_first():
    plan = pdecnn.plan(repeated(3, 3), X)
    assert [r.path for r in plan.runs] == ["1.0-2", "1.4-6"]
    with pytest.raises(ValueError, match=r"'1' holds 2 runs; name one: 1\.0-2, 1\.4-6"):
        plan.without("1")
    assert [r.path for r in plan.without("1.0-2").runs] == ["1.4-6"]


def test_an_edited_plan_counts_anew():
    model = repeated(4)
    plan = pdecnn.plan(model, X).edit("1.0-3", K=9, keep=2)
    cost = pdecnn.profile(plan.apply(model), X)
    assert (plan.after.params, plan.after.macs) == (cost.params, cost.exact)


def test_one_filter_needs_no_list_and_a_name_of_nothing_is_an_error():
    model = repeated(3, 3)
    assert [r.path for r in pdecnn.plan(model, X, ignore="1.0-2").runs] == ["1.4-6"]
    assert len(pdecnn.plan(model, X, only=Residual).runs) == 2
    assert len(pdecnn.plan(model, X, ignore=["0", r"1\.3"]).runs) == 2  # modules, but no runs
    with pytest.raises(ValueError, match=r"names '1\.4_6', but no module .* Close: .*'1\.4-6'"):
        pdecnn.plan(model, X, ignore=["1.4_6"])


def test_reasons_with_brackets_are_printed_as_they_are(made):
    reason = "expected [N, C, H, W], [bold]got[/foo]"
    assert reason in str(dataclasses.replace(made, skipped=(Skipped("stem", reason),)))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("name", ["params", "macs"])
def test_a_budget_is_met_and_used(resnet, made, name, share):
    within = pdecnn.plan(resnet, X, budget={name: f"{100 * share:g}%"})
    cost = pdecnn.profile(within.apply(resnet), X)
    value = {"params": cost.params, "macs": cost.exact}[name]
    limit = share * getattr(made.before, name)
    assert value <= limit
    for run in within.runs:  # one block more, anywhere, is too much
        if run.condenses:
            longer = dataclasses.replace(run, keep=run.keep + 1)
            longer = longer if longer.condenses else dataclasses.replace(run, keep=len(run.units))
            trial = [longer if r is run else r for r in within.runs]
            assert getattr(predicted(made.before, trial), name) > limit


def test_a_budget_of_everything_changes_nothing(resnet, made):
    chosen = choose(made.runs, made.before, {"params": 10.0**9})
    assert not any(run.condenses for run in chosen)
    assert predicted(made.before, chosen) == made.before


def test_a_latency_budget_is_measured(resnet):
    within = pdecnn.plan(resnet, X, budget={"latency_ms": 1e4})
    assert within.before.ms is not None
    assert within.before.ms > 0
    with pytest.raises(ValueError, match=r"latency_ms <= 1e-06 cannot be met"):
        pdecnn.plan(resnet, X, budget={"latency_ms": 1e-6})


def test_a_latency_that_was_not_reached_is_told_as_it_was_asked(resnet, monkeypatch):
    rooms = sys.modules["pdecnn.condensation.plan"]

    def timed(runs, *args, **kwargs):  # 20 ms, of which 1 for each of 15 blocks; the least plan promises 8.3
        costs = [tuple(dataclasses.replace(c, ms=1.0) for c in run.costs) for run in runs]
        layers = [dataclasses.replace(run.layer_cost, ms=0.1) for run in runs]
        return [dataclasses.replace(r, costs=c, layer_cost=q) for r, c, q in zip(runs, costs, layers, strict=True)]

    monkeypatch.setattr(rooms, "timed", timed)
    monkeypatch.setattr(rooms, "measure_ms", lambda model, inputs, done: 20.0 if model is resnet else 13.0)
    with pytest.raises(ValueError, match=r"latency_ms <= 12 cannot be met: 13\.00 ms were measured at best, 20\.00 ms"):
        pdecnn.plan(resnet, X, budget={"latency_ms": 12})


def test_global_layers_are_timed_on_as_many_images_as_the_blocks(monkeypatch):
    seen = []
    monkeypatch.setattr(propose, "measure_ms", lambda model, inputs, done=None: seen.append(len(inputs[0])) or 1.0)
    model = repeated(3)
    run = pdecnn.plan(model, X).runs[0]
    propose._with_ms(run, dict.fromkeys(run.members(), 1.0), model, propose.batch_of((X.expand(8, -1, -1, -1),)))
    assert seen == [8]


def test_impossible_budgets_are_refused(resnet):
    with pytest.raises(ValueError, match=r"params <= 46,690.6 cannot be met: with every run condensed"):
        pdecnn.plan(resnet, X, budget={"params": "10%"})
    with pytest.raises(ValueError, match="budget has no 'flops'; there are params, macs, latency_ms"):
        pdecnn.plan(resnet, X, budget={"flops": 1})
    with pytest.raises(ValueError, match="must be a positive number or such as"):
        pdecnn.plan(resnet, X, budget={"params": "half"})


def test_no_run_is_an_error_that_says_what_to_do():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with pytest.raises(ValueError, match=r"no run to condense in Sequential: 2 convolutions.*@register_block"):
        pdecnn.plan(model, X)


def test_a_layer_dearer_than_its_blocks_is_not_put_in():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), *(Residual(4, 4, 1, True, True) for _ in range(2)))
    with pytest.raises(ValueError, match="1-2: the new layer would cost as much as the blocks"):
        pdecnn.plan(model, X)


def test_wrong_inputs_are_explained(resnet):
    with pytest.raises(ValueError, match=r"does not run on example_inputs of shape \(1, 1, 32, 32\).*\(3, 32, 32\)"):
        pdecnn.plan(resnet, torch.randn(1, 1, 32, 32))
    with pytest.raises(ValueError, match=r"the model is on cpu but example_inputs on meta. Use"):
        pdecnn.plan(resnet, X.to("meta"))
    with pytest.raises(TypeError, match="example_inputs must be a Tensor"):
        pdecnn.plan(resnet, (3,))
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str"):
        pdecnn.plan("resnet18", X)
    with pytest.raises(ValueError, match="keep must be an int of at least 1"):
        pdecnn.plan(resnet, X, keep=0)
    with pytest.raises(ValueError, match="init must be one of 'identity', 'block'"):
        pdecnn.plan(resnet, X, init="zero")
    with pytest.raises(ValueError, match="neither a path nor a regular expression"):
        pdecnn.plan(resnet, X, ignore=["stages[("])


def test_planning_restores_the_mode_of_every_module(resnet):
    resnet.train()
    resnet.stages[1].eval()
    modes = {n: m.training for n, m in resnet.named_modules()}
    pdecnn.plan(resnet, X)
    assert modes == {n: m.training for n, m in resnet.named_modules()}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in resnet.modules())


def test_broken_plan_files_are_refused(made, tmp_path):
    file = tmp_path / "plan.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="is not readable JSON"):
        Plan.load(file)
    file.write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        Plan.load(file)
    values = made.to_dict()
    with pytest.raises(ValueError, match="expected format 'pdecnn-plan/1', got None"):
        Plan.from_dict({k: v for k, v in values.items() if k != "format"})
    with pytest.raises(ValueError, match="it is not complete: model: is missing"):
        Plan.from_dict({"format": values["format"]})
    run = values["runs"][0]
    with pytest.raises(ValueError, match="a run has no entry 'kept'"):
        Run.from_dict({**run, "kept": 1})
    with pytest.raises(ValueError, match="a run is not complete"):
        Run.from_dict({k: v for k, v in run.items() if k != "units"})
    with pytest.raises(ValueError, match="kind must be one of"):
        Run.from_dict({**run, "kind": "loop"})


def test_costs_add_up():
    assert Cost(1, 2) + Cost(3, 4, 0.5) == Cost(4, 6, 0.5)
    assert Cost(3, 4, 0.5) - Cost(1, 2) == Cost(2, 2, 0.5)


def test_modules_themselves_are_taken_as_filters():
    net = timm.create_model("cifar_resnet32")
    made = pdecnn.plan(net, torch.zeros(1, 3, 32, 32), ignore=[net.stages[0], net.stages[1][2]])
    assert [run.parent for run in made.runs] == ["stages.2"]
    alone = pdecnn.plan(net, torch.zeros(1, 3, 32, 32), only=net.stages[1])
    assert [run.parent for run in alone.runs] == ["stages.1"]
    with pytest.raises(ValueError, match="holds a Linear that is not a module of the model"):
        pdecnn.plan(net, torch.zeros(1, 3, 32, 32), ignore=[torch.nn.Linear(1, 1)])


def test_the_table_is_whole_in_80_columns():
    made = pdecnn.plan(timm.create_model("cifar_resnet32"), torch.zeros(1, 3, 32, 32))
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(made.table())
    _, *lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 and "…" not in line for line in lines)
    rows = "\n".join(lines)
    for run in made.runs:
        assert run.path in rows
        assert f"{short(run.before.params)} -> {short(run.after.params)}" in rows
        assert f"{short(run.before.macs)} -> {short(run.after.macs)}" in rows


def test_a_notebook_shows_the_runs_and_what_was_left_alone():
    made = pdecnn.plan(timm.create_model("cifar_resnet32"), torch.zeros(1, 3, 32, 32), ignore="stages.0.*")
    page = made._repr_html_()
    assert page.startswith("<table>")
    for words in ("stages.1.0-4", "5 -&gt; 1 + pde K=3", "Left alone", "stages.0.0-4: ignored, as asked"):
        assert words in page
