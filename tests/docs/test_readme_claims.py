"""What README says of results and networks, against the results and the networks."""

import json
import re
from pathlib import Path
from statistics import mean

import timm

import pdecnn  # noqa: F401  (registers the models)
from pdecnn.layers import GlobalLayer
from pdecnn.symmetry import symmetry_of
from pdecnn.training import load_recipe

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def toy(name):
    return json.loads((ROOT / f"results/mnist-toy-{name}.json").read_text())


def test_the_steps_of_the_savings_table():
    """The nets for ImageNet have one step."""
    assert "(K = 5, and K = 1 in the last three rows;" in README
    rows = re.findall(r"\| ([\w-]+) \| [\d.]+x \|", README)
    assert [row.split("-")[0].lower() for row in rows[-3:]] == ["mobilenetv2", "mobilenetv3", "efficientnet"]
    for name in ("mobilenetv2_100_global", "mobilenetv3_large_100_global", "efficientnet_b0_global"):
        model = timm.create_model(name, device="meta")
        assert {m.K for m in model.modules() if isinstance(m, GlobalLayer)} == {1}


def test_how_the_tiny_nets_were_trained():
    ours, baseline = load_recipe("quick/cifar10-tiny-global"), load_recipe("quick/cifar10-tiny")
    assert (ours.optimizer.weight_decay, baseline.optimizer.weight_decay) == (3e-5, 1e-4)
    assert (
        "(3e-5 for the Global net, 1e-4 for its baseline), and the baseline was compiled and in channels_last" in README
    )


def test_the_toys_stand_side_by_side():
    by_sgd = [float(x) for x in re.findall(r"\d\d\.\d+", toy("global")["note"].split("With SGD")[1])]
    groups = {"global": by_sgd[:3], "residual": by_sgd[3:6], "conv": by_sgd[6:]}
    said = "{global:.1f} % for the Global toy, {residual:.1f} % for the residual one, {conv:.1f} % for the plain one"
    assert said.format(**{name: mean(values) for name, values in groups.items()}) in README
    published = json.loads((ROOT / "results/mnist-toys-published.json").read_text())
    for name in groups:
        runs = [run["accuracy"] for run in published if run["model"] == f"mnist_toy_{name}"]
        both = (f"{mean(a):.1f} % ({', '.join(f'{q:.1f}' for q in a)})" for a in (toy(name)["accuracies"], runs))
        assert "| MNIST | {}; by the published SGD {} |".format(*both) in README
    recipe = published[0]["recipe"]
    assert (recipe["optimizer"]["name"], recipe["optimizer"]["lr"], recipe["schedule"]["name"]) == (
        "sgd",
        0.01,
        "constant",
    )
    confusions = [mean(toy(name)["confusions_3_5"]) for name in ("conv", "residual", "global")]
    assert "{:.0f}, {:.0f} and {:.0f} in the mean of three seeds".format(*confusions) in README


def test_which_networks_a_lie_group_turns():
    """Only the CP form, and Equation (3) once lifted, have more than scalings and permutations."""
    assert "those in CP form (and those of Equation (3), once lifted)" in README
    assert symmetry_of(timm.create_model("cifar_hyperbolic_cp"))[2].label == "O(32)"
    for equation in ("eq3", "eq4", "eq5", "eq6", "eq7"):
        assert symmetry_of(timm.create_model(f"cifar_hyperbolic_{equation}"))[2].label == "signed permutations(32)"


def test_nets_of_cifar10_beside_their_nulls_and_in_both_readings():
    runs = {}
    for file in (ROOT / "results").glob("cifar10-*.json"):
        found = json.loads(file.read_text())
        for run in found if isinstance(found, list) else [found]:
            runs[run["model"], run["epochs"], str(run["recipe"]["model"]["kwargs"])] = run["accuracy"]
    null = "{'no_global': True}"
    for model, epochs, kwargs in (
        ("cifar_resnet_tiny_global", 75, "{}"),
        ("cifar_resnet_tiny_global", 75, null),
        ("cifar_wrn_tiny_global", 10, "{}"),
        ("cifar_wrn_tiny_global", 10, null),
        ("cifar_resnet32_global", 24, "{}"),
        ("cifar_resnet32_global", 36, "{}"),
        ("cifar_resnet32_global", 36, null),
        ("cifar_resnet32_global", 52, "{}"),
        ("cifar_resnet32_global", 52, null),
        ("cifar_resnet32_global", 88, "{}"),
        ("cifar_resnet32_global", 8, "{}"),
        ("cifar_resnet32_global", 8, null),
    ):
        length = "12 + 12" if epochs == 24 else epochs
        assert f"| CIFAR-10 | {runs[model, epochs, kwargs]:.2f} %, {length} epochs, one seed |" in README
    with_them, without = (runs["cifar_resnet32_global", 52, kwargs] for kwargs in ("{}", null))
    assert "the three layers are worth a tenth of a point there" in README
    assert abs(with_them - without - 0.1) < 0.05
    whole, bare = (json.loads((ROOT / f"results/cifar10-tiny-{n}.json").read_text()) for n in ("global", "null"))
    cycles = whole["earlier_cycles"][:2], (bare["earlier_cycles"][0], bare)
    for first, second in cycles:
        length = f"{first['epochs']} + {second['recipe']['epochs']}"
        assert f"| CIFAR-10 | {second['accuracy']:.2f} %, {length} epochs, one seed |" in README
    gains = (mine["accuracy"] - null["accuracy"] for mine, null in zip(*cycles, strict=True))
    assert "the layers are worth {:.1f} and {:.1f} points".format(*gains) in README
    text, counts = (runs["cifar_resnet_tiny_global", 5, f"{{'reading': '{name}'}}"] for name in ("text", "counts"))
    said = " ".join((ROOT / "docs/notation.md").read_text(encoding="utf-8").split())
    assert f"counts, and {runs['cifar_resnet_tiny_global', 5, null]:.2f} % without its Global layers" in said
    assert f"has {text:.2f} % of the test images of CIFAR-10 in the reading of the text and {counts:.2f} %" in said


def test_the_toy_without_its_equation():
    found = toy("null")
    assert found["recipe"]["model"]["kwargs"] == {"no_global": True}
    assert found["seeds"] == toy("global")["seeds"]
    each = ", ".join(f"{accuracy:.1f}" for accuracy in found["accuracies"])
    assert f"| MNIST | {found['accuracy']:.1f} % ({each}) |" in README


def test_the_smallest_net_beside_its_null():
    ours, null = (json.loads((ROOT / f"results/mnist-micro-{name}.json").read_text()) for name in ("global", "null"))
    assert ours["seeds"] == null["seeds"] == [1, 2, 3]
    assert null["recipe"] == ours["recipe"] | {"model": null["recipe"]["model"]}
    rows = {"`mnist_micro_global`, {} parameters, ours": ours, "the same without its PDE layers, {} parameters": null}
    for name, run in rows.items():
        net = timm.create_model(run["model"], **run["recipe"]["model"]["kwargs"])
        size = name.format(sum(p.numel() for p in net.parameters()))
        each = ", ".join(f"{accuracy:.1f}" for accuracy in run["accuracies"])
        assert f"{size} | MNIST | {run['accuracy']:.1f} % ({each}), {run['epochs']} epochs |" in README
    assert ours["accuracy"] > 98.5
    assert "98.5 % were aimed at" in README


def test_how_long_a_search_takes():
    found = json.loads((ROOT / "benchmarks/results/prediction.json").read_text())["search"]["resnet50"]
    page = " ".join((ROOT / "docs/benchmarks/scaling.md").read_text(encoding="utf-8").split())
    assert found["done"]
    took = sum(part["wall"] for part in found["seconds"].values())
    assert f"took {took:.0f} s on two cores of an {found['cpu']}" in page
    parts = [f"{part['wall']:.0f} s" for part in found["seconds"].values()]
    assert (
        "{} to time the choices, {} for what they harm, {} for inner channels and {} to choose".format(*parts) in page
    )


def test_a_search_on_photographs_beside_its_null():
    net = json.loads((ROOT / "benchmarks/results/condense_imagenette_lite0.json").read_text())["nets"]
    job, null, times = (net["tf_efficientnet_lite0"][part] for part in ("job", "null", "times"))
    teacher, after = (job["accuracies"][name] for name in ("teacher", "distilled"))
    speed = times["onnx_speedup"]
    assert f"it has {after:.1f} % of 750 instead of {teacher:.1f} %, at {speed['condensed']:.2f}x the speed" in README
    assert f"in place of the blocks {null['accuracies']['distilled']:.1f} % at {speed['null']:.2f}x" in README


def test_searches_on_photographs_that_took_fewer_inner_channels():
    asked = {"lite0_inner": "65 %, it has", "resnet18_224": "half of its milliseconds, it has"}
    epochs = {"lite0_inner": "four", "resnet18_224": "eight"}
    for name, start in asked.items():
        found = json.loads((ROOT / f"benchmarks/results/condense_imagenette_{name}.json").read_text())
        (net,) = found["nets"].values()
        assert found["searched"]
        assert {"four": 4, "eight": 8}[epochs[name]] == found["epochs"]
        assert net["job"]["plan"].startswith("inner")
        assert net["job"]["layers"] == 0
        assert net["pixels"] == 224
        of, speed = net["job"]["accuracies"], net["times"]["onnx_speedup"]["condensed"]
        said = (
            f"{start} {of['fitted, no labels']:.1f} % of {found['images']['val']:,} pictures instead of "
            f"{of['teacher']:.1f} % before any training and {of['distilled']:.1f} % after {epochs[name]} epochs of "
            f"{found['images']['train']:,}, at {speed:.2f}x the speed"
        )
        assert said in README
        lost = of["teacher"] - of["distilled"]
        if name == "lite0_inner":
            assert round((lost - 1) / 100 * found["images"]["val"]) == 2
            assert round(lost) == 1
        else:
            assert lost < 0 < speed - 2
    trained = json.loads((ROOT / "results/imagenette-resnet18-224.json").read_text())["accuracy"]
    assert f"({trained:.1f} % as its recipe crops pictures, {of['teacher']:.1f} % as jobs then did)" in README
    assert "One point was aimed at: the ResNet loses none, the EfficientNet missed it by two pictures" in README
    again = json.loads((ROOT / "benchmarks/results/condense_imagenette_lite0_inner_66.json").read_text())
    (net,) = again["nets"].values()
    assert (again["budget"], again["epochs"]) == ("66%", 6)
    reached, speed = net["job"]["accuracies"]["distilled"], net["times"]["onnx_speedup"]["condensed"]
    assert f"for 66 % and with six epochs again: {reached:.1f} % at {speed:.2f}x" in README
    faq = " ".join((ROOT / "docs/faq.md").read_text(encoding="utf-8").split())
    assert (
        "with fewer inner channels and all its blocks the net lost one, and a ResNet-18 nothing at twice its speed"
        in faq
    )
