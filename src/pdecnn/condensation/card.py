"""The card of a saved model: README.md as the hubs know it, from the model, its config and what is measured here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import yaml
from torch import nn

from pdecnn.analysis.cost import CostReport, profile
from pdecnn.analysis.latency import environment, measure, threads
from pdecnn.condensation.compare import serve
from pdecnn.condensation.plan import Plan
from pdecnn.condensation.replacements import NOTHING, STEPS
from pdecnn.models.described import can_describe
from pdecnn.shared.modules import eval_mode
from pdecnn.shared.trees import arguments
from pdecnn.training.checkpoint import CARD_MARK

OWNER = "OWNER"  # of a repository that is not there yet
_FEW = 12  # classes that are named


@dataclass(frozen=True)
class Measured:
    """What a card says of costs: counts, milliseconds at batch 1 on one thread, or why there are none."""

    cost: CostReport | None = None
    ms: float | None = None
    reason: str = ""


def make_card(
    model: nn.Module,
    config: Mapping[str, Any],
    name: str,
    *,
    example: Any = None,
    timed: bool = True,
    comparison: Sequence[tuple[str, ...]] = (),
    use: str | None = None,
) -> str:
    """The text of README.md.

    Args:
        model: The model.
        config: Its config.json. The card tells of these entries, where they are: `accuracy` (per cent), `data`,
            `seeds`, `epochs`, `classes`, `input`, `license`, `note`, and those of a training run.
        name: Of the repository, `owner/name`, or of the folder.
        example: One input; by default zeros of the shape that the config or the model names.
        timed: Whether to measure milliseconds, which takes about a second.
        comparison: Rows of label, before, after and change, of a condense job.
        use: Code that opens the model; that for a repository by default.
    """
    facts = facts_of(model, config)
    found = measure_model(model, config, example, timed)
    parts = [
        _front(facts, name),
        f"{CARD_MARK}\n\n# {name.rpartition('/')[2]}\n\n{_summary(facts)}",
        "## Figures\n\n" + _table(("", ""), _figures(facts, found)),
        _compared(comparison),
        _plan(config["model"]),
        _use(facts, _opening(facts, name) if use is None else use),
        _origin(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def facts_of(model: nn.Module, config: Mapping[str, Any]) -> dict[str, Any]:
    """What is known of a model without running it; entries of a training run stand in for those that are not given."""
    recipe, description = config.get("recipe") or {}, config["model"]
    cfg: Any = getattr(model, "pretrained_cfg", None)
    cfg = cfg if isinstance(cfg, dict) else {}
    own, input_of = {"shape": "input_size"}, config.get("input") or {}
    inputs = {key: input_of.get(key) or cfg.get(own.get(key, key)) for key in ("mean", "std", "shape")}
    known = {
        "kind": type(model).__name__,
        "description": description,
        "classes": list(config.get("classes") or ()),
        "num_classes": getattr(model, "num_classes", None) or len(config.get("classes") or ()) or None,
        "input": {key: list(value) for key, value in inputs.items() if value is not None},
        "accuracy": (config.get("metrics") or {}).get("accuracy"),
        "data": (recipe.get("data") or {}).get("name"),
        "epochs": recipe.get("epochs"),
        "seeds": [recipe["seed"]] if "seed" in recipe else [],
        "timm": config.get("architecture"),
        "license": None,
        "note": None,
    }
    given = ("accuracy", "data", "epochs", "seeds", "license", "note")
    return known | {key: config[key] for key in given if config.get(key) is not None}


def measure_model(model: nn.Module, config: Mapping[str, Any], example: Any = None, timed: bool = True) -> Measured:
    """The counts and the time of a model; if no input was given and none that is guessed fits, the reason."""
    x = _guess(model, config) if example is None else example
    if x is None:
        return Measured(reason="no input was given, save(model, folder, example=x)")
    try:
        with eval_mode(model), torch.inference_mode(), threads(1):
            cost = profile(model, x)
            return Measured(cost, _milliseconds(model, x) if timed else None)
    except Exception as error:
        if example is not None:
            raise
        first = f"{error}".strip().partition("\n")[0]
        return Measured(reason=f"the model does not run on zeros of shape {tuple(x.shape)}: {first}")


def _milliseconds(model: nn.Module, x: Any) -> float:
    served = serve(model, x)
    call = partial(lambda given: served(*given), arguments(served, x))
    return 1e3 * measure({"served": call}, rounds=15, warmup=1, max_seconds=1.0)["served"].median


def _guess(model: nn.Module, config: Mapping[str, Any]) -> torch.Tensor | None:
    """Zeros of the shape that the config, the plan or timm's entries name."""
    cfg: Any = getattr(model, "pretrained_cfg", None)
    planned: Any = (config["model"].get("plan") or {}).get("input_shapes") or ()
    shape = (config.get("input") or {}).get("shape") or (planned[0][1:] if len(planned) == 1 else None)
    if shape is None and isinstance(cfg, dict) and cfg.get("input_size"):
        shape = (getattr(model, "in_chans", None) or cfg["input_size"][0], *cfg["input_size"][1:])
    like = next(model.parameters(), torch.empty(()))
    return None if shape is None else torch.zeros(1, *shape, dtype=like.dtype, device=like.device)


def _front(facts: dict[str, Any], name: str) -> str:
    """What a hub reads."""
    tags = ["pdecnn", *(["timm"] if facts["timm"] else []), "pde", "image-classification"]
    front: dict[str, Any] = {"library_name": "pdecnn", "tags": tags if facts["num_classes"] else tags[:-1]}
    if facts["num_classes"]:
        front["pipeline_tag"] = "image-classification"
    if facts["license"]:
        front["license"] = facts["license"]
    data, accuracy = facts["data"], facts["accuracy"]
    if isinstance(data, str) and data.replace("-", "").replace("_", "").isalnum():
        front["datasets"] = [data]
    if data and accuracy is not None:
        metric = {"type": "accuracy", "value": round(accuracy / 100, 6)}
        task, of = {"type": "image-classification"}, {"type": str(data), "name": str(data)}
        results = [{"task": task, "dataset": of, "metrics": [metric]}]
        front |= {"metrics": ["accuracy"], "model-index": [{"name": name.rpartition("/")[2], "results": results}]}
    return f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---"


def _summary(facts: dict[str, Any]) -> str:
    description = facts["description"]
    base = _base_name(description) or facts["kind"]
    if description.get("builder") == "condensed":
        plan = Plan.from_dict(description["plan"])
        gone = sum(len(run.removed) for run in plan.runs if run.condenses)
        blocks = sum(len(run.units) for run in plan.runs)
        return (
            f"`{base}`, condensed by pdecnn: of {blocks} repeated blocks {gone} went, and cheap layers do their work."
        )
    steps = description.get("steps")
    served = f" It serves every number of time steps K from {steps['least']} to {steps['most']}." if steps else ""
    return f"`{base}`, saved by pdecnn.{served}"


def _base_name(description: Mapping[str, Any]) -> str:
    while isinstance(base := description.get("base"), dict):
        description = base
    return str(description.get("name") or "")


def _figures(facts: dict[str, Any], found: Measured) -> list[tuple[str, str]]:
    rows = []
    if found.cost is not None:
        pde = found.cost.macs["pde"]
        steps = f", steps of PDEs included ({pde:,} in solvers)" if pde else ", steps of PDEs included"
        rows += [
            ("parameters", f"{found.cost.params:,}"),
            ("multiply-adds, exact", f"{found.cost.exact:,}{steps}"),
            ("multiply-adds of convolutions and linear layers", f"{found.cost.conv_fc:,}"),
            ("counted for an input of", " x ".join(map(str, found.cost.input_shapes[0]))),
        ]
    else:
        rows.append(("multiply-adds", f"not counted: {found.reason}"))
    if found.ms is not None:
        here = environment()
        where = f"batch 1, one thread of {here['cpu']}, torch {here['torch']}, optimize_for_inference"
        rows.append(("time", f"{found.ms:.3g} ms ({where})"))
    if facts["accuracy"] is not None:
        on = f" on {facts['data']}" if facts["data"] else ""
        rows.append(("accuracy", f"{facts['accuracy']:.2f} %{on}"))
    if facts["epochs"]:
        rows.append(("epochs", str(facts["epochs"])))
    if facts["seeds"]:
        rows.append(("seeds" if len(facts["seeds"]) > 1 else "seed", ", ".join(map(str, facts["seeds"]))))
    classes = facts["classes"]
    if classes:
        more = f" and {len(classes) - _FEW} more" if len(classes) > _FEW else ""
        rows.append(("classes", f"{len(classes)}: {', '.join(map(str, classes[:_FEW]))}{more}"))
    elif facts["num_classes"]:
        rows.append(("classes", str(facts["num_classes"])))
    return rows


def _compared(rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    here = environment()
    machine = f"Times were taken side by side on {here['cpu']} ({here['cores']} cores), torch {here['torch']}."
    return f"## Before and after\n\n{_table(('', 'before', 'after', 'change'), rows)}\n\n{machine}"


def _plan(description: Mapping[str, Any]) -> str:
    """Which blocks went, and what came in their place."""
    if description.get("builder") != "condensed":
        return ""
    plan = Plan.from_dict(dict(description["plan"]))
    rows = [
        (
            f"`{run.path}`",
            run.block,
            f"{run.keep} of {len(run.units)}",
            run.replacement,
            str(run.K) if run.replacement in STEPS else "",
        )
        for run in plan.runs
        if run.condenses
    ]
    lines = [_table(("blocks", "kind", "kept", "in the place of the others", "K"), rows)]
    if any(row[3] == NOTHING for row in rows):
        lines.append("`nothing`: the blocks were dropped.")
    if plan.width != 1:
        lines.append(f"Every layer has {plan.width:g} of its channels.")
    if plan.inner:
        stay, of = (sum(getattr(one, name) for one in plan.inner) for name in ("keep", "channels"))
        lines.append(f"Of {of:,} channels that only one layer reads, in {len(plan.inner)} places, {stay:,} stayed.")
    alone = len(plan.skipped)
    told = f"{alone} other place{'s were' if alone > 1 else ' was'} left alone; " if alone else ""
    lines.append(f"{told}config.json has the plan{' and the reasons' if alone else ''}.")
    return "## Plan\n\n" + "\n\n".join(lines)


def _opening(facts: dict[str, Any], name: str) -> str:
    repository = name if "/" in name else f"{OWNER}/{name}"
    code = ["import pdecnn", ""]
    if can_describe(facts["description"]):
        code.append(f'model = pdecnn.from_pretrained("{repository}")  # or pdecnn.load(FOLDER)')
        if facts["timm"]:
            code += [
                "",
                "import timm",
                f'model = timm.create_model("hf-hub:{repository}", pretrained=True)  # the same',
            ]
    else:
        made = _base_name(facts["description"]) or "module:function"
        code.append(f'model = pdecnn.from_pretrained("{repository}", factory=make)  # make: your {made}')
    return "\n".join(code)


def _use(facts: dict[str, Any], code: str) -> str:
    shape = facts["input"].get("shape")
    text = f"## Use\n\n```python\n{code}\n```"
    if not shape:
        return text
    norm = [f"{key} {facts['input'][key]}" for key in ("mean", "std") if key in facts["input"]]
    images = f"Inputs are of shape (N, {', '.join(map(str, shape))})"
    return (
        text + f"\n\n{images}: values from 0 to 1, normalised by {' and '.join(norm)}."
        if norm
        else f"{text}\n\n{images}."
    )


def _origin(facts: dict[str, Any]) -> str:
    licence = f"Licence of the weights: {facts['license']}." if facts["license"] else "No licence was stated."
    data = f"Data: {facts['data']}." if facts["data"] else "The data were not stated."
    return "## Licence and data\n\n" + "\n\n".join(filter(None, (f"{licence} {data}", facts["note"])))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
