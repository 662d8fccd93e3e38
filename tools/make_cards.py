"""Writes the card of every file of weights in src/pdecnn/weights, from results/, the recipes and what is measured here.

python tools/make_cards.py               # in a minute, on a machine that does nothing else
python tools/make_cards.py --keep-times  # all but the milliseconds, on any machine
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import timm

import pdecnn.models  # noqa: F401  (registers the models)
from pdecnn.analysis.latency import environment
from pdecnn.analysis.own_runs import network_options
from pdecnn.condensation.card import make_card
from pdecnn.models.build import timm_entries
from pdecnn.training import evaluate, load_dataset, load_recipe
from pdecnn.training.own import in_memory

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "src/pdecnn/weights"
DATA = {
    "cifar10": "CIFAR-10 (A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009). Its authors "
    "publish it without naming a licence; its images were collected from the web.",
    "mnist": "MNIST (Y. LeCun, C. Cortes, C. Burges), derived from databases of NIST; distributed under CC BY-SA 3.0.",
    "fashion-mini": "The first 500 training and 100 test images of every class of Fashion-MNIST (H. Xiao, K. Rasul, "
    "R. Vollgraf, 2017), MIT licence, Zalando SE. They are in the package.",
}
TIME, AFTER_TIME = r"^\| time \| .* \|\n", "| accuracy |"
QUIET = 0.5  # processes that ran or waited in the last minute
RECIPES = {"fashion_resnet32": "quick/fashion-teacher", "fashion_hyperbolic_cp": "quick/fashion-hyperbolic"}


def results() -> dict[tuple[str, str], dict[str, Any]]:
    """What training left, by model and data.

    Files with several runs compare them, and have no weights; nor have nulls and other changes of a model.
    """
    found = [json.loads(file.read_text()) for file in sorted((ROOT / "results").glob("*.json"))]
    own = [entry for entry in found if isinstance(entry, dict) and not _changes(entry)]
    return {(entry["model"], entry["dataset"]): entry for entry in own}


def _changes(entry: dict[str, Any]) -> dict[str, Any]:
    """The keywords that made a trained net another than the one of its name."""
    return network_options(entry["recipe"]["model"]["kwargs"])


def facts(name: str, model: Any) -> dict[str, Any]:
    """Accuracy, seed and the like of the first run, whose weights these are; measured here for embedded images."""
    architecture, _, tag = name.partition(".")
    data = tag.replace("_", "-")
    if found := results().get((architecture, data)):
        note = found["note"]
        if len(found["seeds"]) > 1:
            others = ", ".join(f"{a:.2f}" for a in found["accuracies"][1:])
            note += f" The weights are of the first seed; the others reached {others} %."
        kept = {"accuracy": found["accuracies"][0], "seeds": found["seeds"][:1], "epochs": found["epochs"]}
        return {**kept, "data": data, "note": f"{DATA[data]}\n\n{note}"}
    recipe, images = load_recipe(RECIPES[architecture]), load_dataset(data)
    accuracy = evaluate(model, in_memory(images, 64, 0).evaluation, num_classes=images.num_classes).accuracy
    about = f"Trained by the recipe `{RECIPES[architecture]}`; the accuracy is that of the 1,000 test images."
    kept = {"accuracy": accuracy, "seeds": [recipe.seed], "epochs": recipe.epochs}
    return {**kept, "data": data, "classes": list(images.classes), "note": f"{DATA[data]}\n\n{about}"}


def card(name: str, timed: bool) -> str:
    """The card of the weights with this name; without milliseconds, the same on every machine."""
    model = timm.create_model(name, pretrained=True).eval()
    description = {"builder": "timm", "name": name.partition(".")[0], "kwargs": {}}
    entries = timm_entries(model, description)
    config = {"model": description, **entries, "license": "apache-2.0", **facts(name, model)}
    use = f'import timm, pdecnn\n\nmodel = timm.create_model("{name}", pretrained=True)  # it is in the package'
    return make_card(model, config, name, use=use, timed=timed)


def split_time(text: str) -> tuple[str, str]:
    """A card without its line of milliseconds, and that line."""
    lines = re.findall(TIME, text, re.MULTILINE)
    if len(lines) != 1:
        raise ValueError(f"make_cards: expected one line of milliseconds in a card, found {len(lines)}.")
    return text.replace(lines[0], ""), lines[0]


def main() -> None:
    """Writes the cards."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep-times", action="store_true", help="keep the milliseconds that the cards have")
    keep = parser.parse_args().keep_times
    load = environment()["load"][0]
    if not keep and load is not None and load > QUIET:
        raise SystemExit(
            f"make_cards: this machine is busy (load {load}): wait until it is below {QUIET}, or --keep-times."
        )
    for file in sorted(WEIGHTS.glob("*.safetensors")):
        to = file.with_suffix(".md")
        text = card(file.stem, timed=not keep)
        if keep:
            text = text.replace(AFTER_TIME, split_time(to.read_text(encoding="utf-8"))[1] + AFTER_TIME)
        to.write_text(text, encoding="utf-8")
        print(to.relative_to(ROOT), split_time(text)[1].strip())


if __name__ == "__main__":
    main()
