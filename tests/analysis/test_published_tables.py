"""Every count against the published figure, to its printed precision, and against our own derivation."""

import csv
import io
import json
from dataclasses import replace

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pdecnn import profile
from pdecnn.analysis.own_runs import OwnRuns, find_runs, read_results
from pdecnn.analysis.published import (
    ROWS,
    TITLES,
    TRUNCATED,
    Row,
    parse_printed,
    rounds_to,
    rows,
    truncates_to,
)
from pdecnn.analysis.tables import Entry, Table, as_the_text_reads, build_table, count, count_cells, to_csv

# Rows whose printed figure is not met, with the reason; this list is complete: a row that is not in it must match.
PARAMS_UNMATCHED = {
    ("ResNet-32", "CIFAR-10"): "option-A shortcuts",
    ("ResNet-56", "CIFAR-10"): "shortcuts that the figure of CIFAR-100 demands",
    ("ResNet-56", "CIFAR-100"): "cut off",
    ("ResNet", "MNIST"): "residual down-sampling",
    ("Neural ODE", "MNIST"): "literature",
    ("ResNet-Global, < 5M MAC", "MNIST"): "no configuration matches",
    ("Hamiltonian PDE", "CIFAR-10"): "its authors print 264,106",
    ("MDEQ", "CIFAR-10"): "11.1M counted for the published configuration",
    ("tiny WRN-Global", "CIFAR-100"): "cut off",
    ("tiny DARTS", "CIFAR-10"): "38,452 counted",
    ("MobileNetV2", "ImageNet"): "literature",
    ("MobileNetV3-Large", "ImageNet"): "literature",
    ("ResNet-Global", "CIFAR-100", 7): "constant D gives 1,321,092",
    ("WRN-Global, residual f", "CIFAR-100"): "3.0M counted",
}
MACS_UNMATCHED = {
    ("WRN-40-4", "CIFAR-10"): "printed as 1.30B",
    ("WRN-40-4", "CIFAR-100"): "printed as 1.30B",
    ("WRN-Global", "CIFAR-100", 3): "cut off",
    ("DARTS-Global", "CIFAR-100", 3): "cut off",
    ("MobileNet", "ImageNet"): "literature",
    ("DenseNet-169", "ImageNet"): "literature",
    ("ResNet-152", "ImageNet"): "literature",
    ("MobileNetV2", "ImageNet"): "literature",
    ("MobileNetV2-Global-s", "ImageNet"): "150.8M counted",
    ("MobileNetV3-Large", "ImageNet"): "literature",
    ("MobileNetV3-Global-s", "ImageNet"): "nothing of width 1 matches",
    ("EfficientNet-B0", "ImageNet"): "literature",
    ("EfficientNet-B0-Global-s", "ImageNet"): "nothing of width 1 matches",
    **{(f"K = {K}", dataset): "no rule" for K in (1, 3, 10, 20) for dataset in ("CIFAR-10", "CIFAR-100")},
    ("ResNet-Global, residual f", "CIFAR-10"): "26.38M counted",
    ("ResNet-Global, residual f", "CIFAR-100"): "26.38M counted",
    ("WRN-Global, residual f", "CIFAR-10"): "cut off",
    ("WRN-Global, f = I", "CIFAR-100"): "cut off",
    ("NeuPDE", "MNIST"): "22M counted",
}
# Their MACs depend on how many evaluations a solver takes; `test_baselines` counts one evaluation.
SOLVERS = {"mnist_odenet", "cifar_mdeq", "cifar_mdeq_small"}
BUILT = [row for row in ROWS if row.model]


def find(reasons, row):
    return reasons.get((row.name, row.dataset, row.table)) or reasons.get((row.name, row.dataset))


@pytest.mark.parametrize("row", BUILT, ids=lambda r: f"{r.table}-{r.name}-{r.dataset}")
def test_counts_are_the_published_ones_to_their_printed_precision(row: Row):
    entry = Entry(row, count(row))
    figures = [(row.params, entry.params, row.params_differ, find(PARAMS_UNMATCHED, row))]
    if row.model not in SOLVERS:
        figures.append((row.macs, entry.macs, row.macs_differ, find(MACS_UNMATCHED, row)))
    for printed, counted, differs, reason in figures:
        if not printed:
            continue
        assert rounds_to(counted, printed) == (reason is None), f"{counted} against {printed}"
        assert (reason is None) == (differs == "")
        assert reason is None or reason in differs
        if differs == TRUNCATED:
            assert truncates_to(counted, printed)


# P for 10 and 100 classes, then MACs in millions for 10 classes: thop, conv+fc, exact [our derivation, from the PDE's
# arithmetic and the layers' shapes]; the digits given are all asserted.
DERIVED = {
    "cifar_resnet32": (466_906, 472_756, "69.76", "69.12", "69.12"),
    "cifar_resnet32_global": (161_850, 167_700, "15.36", "14.78", "16.04"),
    "cifar_resnet56": (855_770, 861_620, "126.84", "125.75", "125.75"),
    "cifar_resnet56_global": (330_362, 336_212, "30.13", "29.60", "30.57"),
    "cifar_densenet_bc100": (769_162, 800_032, "296.52", "287.93", "287.93"),
    "cifar_densenet_bc100_global": (465_442, 481_192, "136.12", "132.77", "133.67"),
    "cifar_wrn40_4": (8_977_994, 9_001_124, "1330.2", "1327.2", "1327.2"),
    "cifar_wrn40_4_global": (2_789_322, 2_812_452, "425.35", "423.27", "427.17"),
    "cifar_darts": (3_349_342, 3_401_272, "539.12", "528.36", "528.36"),
    "cifar_darts_global": (783_298, 835_228, "213.49", "206.95", "214.47"),
    "cifar_resnet_tiny": (13_016, 13_826, "3.422", "3.298", "3.298"),
    "cifar_resnet_tiny_global": (14_393, 15_923, "3.562", "3.343", "3.940"),
    "cifar_wrn_tiny": (21_794, 22_604, "9.812", "9.531", "9.531"),
    "cifar_wrn_tiny_global": (22_786, 24_676, "8.666", "8.209", "9.211"),
    "cifar_darts_tiny": (38_452, 42_862, "7.722", "6.825", "6.825"),
    "cifar_darts_tiny_global": (33_650, 40_940, "8.236", "7.294", "8.339"),
    "cifar_resnet32_global_residual": (175_066, 180_916, "26.38", None, None),
    "cifar_wrn40_4_global_residual": (2_981_962, 3_005_092, "566.55", None, None),
}
DERIVED_100 = {  # the nets of Table 7, for 100 classes
    "cifar_resnet56_global_wide": (1_326_916, "118.92", None, "120.04"),
    "cifar_densenet_bc100_global_wide": (922_168, "247.10", None, "242.31"),
    "cifar_wrn40_4_global_wide": (8_574_708, "1299.7", None, "1303.7"),
    "cifar_darts_global_wide": (2_405_524, "519.02", None, "519.27"),
}
DERIVED_MNIST = {
    "mnist_resnet": (576_778, "29.81", None, None),
    "mnist_resnet_global": (136_074, "14.00", None, None),
    "mnist_resnet_tiny": (33_322, "5.703", None, None),
    "mnist_resnet_tiny_global": (10_026, "1.77", "1.70", None),
}


def assert_counts(counts, features, thop, conv_fc, exact, model):
    # the derivation took DenseNet's last pooling as AvgPool2d(8), one per output; here it is adaptive: inputs count too
    unseen = 64 * features if "densenet" in model else 0
    for got, expected in ((counts.thop - unseen, thop), (counts.conv_fc, conv_fc), (counts.exact, exact)):
        if expected is not None:
            assert rounds_to(got, expected + "M"), (got, expected)


def features_of(model):
    with torch.device("meta"):
        return timm.create_model(model).num_features


@pytest.mark.parametrize("model, derived", DERIVED.items())
def test_derived_counts(model, derived):
    params, params_100, *macs = derived
    ten = count(Row(0, "", "CIFAR-10", None, "", "", model))
    hundred = count(Row(0, "", "CIFAR-100", None, "", "", model))
    assert (ten.params, hundred.params) == (params, params_100)
    features = features_of(model)
    assert_counts(ten, features, *macs, model)
    assert {getattr(hundred, c) - getattr(ten, c) for c in ("thop", "conv_fc", "exact")} == {90 * features}


@pytest.mark.parametrize("model, derived", (DERIVED_100 | DERIVED_MNIST).items())
def test_derived_counts_of_single_nets(model, derived):
    params, *macs = derived
    counts = count(Row(0, "", "CIFAR-100" if model in DERIVED_100 else "MNIST", None, "", "", model))
    assert counts.params == params
    assert_counts(counts, features_of(model), *macs, model)


@pytest.mark.parametrize(
    "model, options, params, thop",
    [
        ("cifar_resnet32_global", {"coef_bias": False}, 161_402, "15.24"),
        ("cifar_resnet56_global", {"coef_bias": False}, 330_138, "30.07"),
        ("cifar_resnet56_global", {"diffusion": "depthwise", "coef_bias": False}, 332_602, "30.70"),
        ("cifar_densenet_bc100_global", {"coef_bias": True}, 465_994, "136.20"),
        ("cifar_wrn40_4_global", {"diffusion": "depthwise", "coef_bias": False}, 2_798_282, "427.64"),
        ("cifar_darts_global", {"coef_bias": False}, 782_434, None),
        ("cifar_resnet_tiny_global", {"coef_bias": True}, 14_533, "3.616"),
        ("cifar_wrn_tiny_global", {"coef_bias": False}, 22_562, "8.574"),
        ("cifar_darts_tiny_global", {"coef_bias": False}, 33_530, "8.175"),
        # who makes u, v, the diffusivities being depth-wise without bias
        ("cifar_resnet32_global", {"velocity": "residual", "coef_bias": False}, 353_818, "43.27"),
        ("cifar_resnet32_global", {"velocity": "bottleneck", "coef_bias": False}, 279_002, "32.37"),
        ("cifar_resnet32_global", {"velocity": "depthwise", "coef_bias": (True, False)}, 161_626, "15.30"),
        ("cifar_resnet32_global", {"velocity": "pointwise", "coef_bias": (True, False)}, 170_362, "16.36"),
        ("cifar_resnet32_global", {"velocity": "full", "coef_bias": (True, False)}, 256_378, "28.94"),
        ("cifar_resnet32_global", {"velocity": "identity", "coef_bias": False}, 159_386, "14.73"),
        ("cifar_resnet32_global", {"velocity": "identity", "diffusion": "identity"}, 157_370, "14.21"),
    ],
)
def test_derived_counts_of_variants(model, options, params, thop):
    counts = count(Row(0, "", "CIFAR-10", None, "", "", model, {"global_options": options}))
    assert counts.params == params
    assert_counts(counts, features_of(model), thop, None, None, model)


@pytest.mark.parametrize("K, learned, constant", [(1, "15.35", "14.55"), (5, "16.04", "15.24"), (20, "18.62", "17.82")])
def test_exact_macs_grow_by_six_per_element_and_step(K, learned, constant):
    exact, base = {}, {}
    for name, options in (("learned", {}), ("constant", {"diffusion": 1.0})):
        row = Row(0, "", "CIFAR-10", None, "", "", "cifar_resnet32_global", {"K": K, "global_options": options})
        exact[name], base[name] = count(row).exact, count(row).conv_fc
    assert rounds_to(exact["learned"], learned + "M")
    assert rounds_to(exact["constant"], constant + "M")
    elements = 16 * 32 * 32 + 32 * 16 * 16 + 64 * 8 * 8
    assert elements == 28_672
    assert exact["learned"] - base["learned"] == (6 * K + 14) * elements
    assert exact["constant"] - base["constant"] == (6 * K + 4) * elements


@pytest.mark.parametrize(
    "model, with_classifier, without, conv_fc, thop",
    [
        ("mobilenetv2_100_global", 2_871_400, 1_590_400, None, "193.08"),
        ("mobilenetv2_100_global_s", 2_444_280, 1_163_280, "150.8", "160.0"),
        ("mobilenetv3_large_100_global", 4_253_480, 2_972_480, None, "155.99"),
        ("mobilenetv3_large_100_global_s", 3_081_904, 1_800_904, None, "111.7"),
        ("efficientnet_b0_global", 3_678_032, 2_397_032, "234.0", "243.84"),
        ("efficientnet_b0_global_s", 3_098_422, 1_817_422, "202.1", None),
    ],
)
def test_derived_counts_on_imagenet(model, with_classifier, without, conv_fc, thop):
    counts = count(Row(0, "", "ImageNet", None, "", "", model))
    assert counts.params_without_classifier == without
    if model != "mobilenetv3_large_100_global_s" and model != "efficientnet_b0_global_s":
        assert counts.params == with_classifier == without + 1_281_000
    assert_counts(counts, 0, thop, conv_fc, None, model)


@pytest.mark.parametrize(
    "model, params, conv_fc, thop",
    [
        ("mobilenetv2_100_global", 2_952_232, "233.5", "245.8"),
        ("mobilenetv3_large_100_global", 3_868_160, "174.4", "183.2"),
        ("efficientnet_b0_global", 3_822_932, "295.4", "308.4"),
    ],
)
def test_derived_counts_of_the_authors_code_on_imagenet(model, params, conv_fc, thop):
    counts = count(Row(0, "", "ImageNet", None, "", "", model, {"layout": "code"}))
    assert counts.params == params
    assert_counts(counts, 0, thop, conv_fc, None, model)


def test_exact_macs_of_b0_global():
    with torch.device("meta"):
        model = timm.create_model("efficientnet_b0_global")
    report = profile(model, torch.zeros(1, 3, 224, 224, device="meta"))
    assert report.macs["pde"] == (6 + 4) * 153_664
    assert rounds_to(report.conv_fc + report.macs["pde"], "235.6M")
    gates = report.exact - report.conv_fc - report.macs["pde"]
    assert gates == report.macs["elementwise"] > 0  # squeeze-and-excite and the product u v


def test_toys():
    toys = {m: count(Row(0, "", "MNIST", None, "", "", f"mnist_toy_{m}")) for m in ("conv", "residual", "global")}
    assert {c.params for c in toys.values()} == {524}
    assert {c.conv_fc for c in toys.values()} == {14_602}
    assert toys["global"].exact - toys["global"].conv_fc == 23_520 + 4 * 784  # the steps and their set-up


def test_every_table_has_rows_and_every_built_row_a_model():
    assert {row.table for row in ROWS} == set(TITLES) == set(range(1, 9))
    for row in BUILT:
        assert timm.is_model(row.model)
    assert [row.name for row in ROWS if not row.model] == ["SqueezeNext", "MDEQ-Small"]


@given(st.integers(1, 999), st.integers(0, 3), st.sampled_from("KMB"))
def test_printed_figures(mantissa, digits, unit):
    printed = f"{mantissa / 10**digits:.{digits}f}{unit}"
    value, last = parse_printed(printed)
    scale = {"K": 10**3, "M": 10**6, "B": 10**9}[unit]
    assert value == pytest.approx(mantissa * scale / 10**digits)
    assert last == scale / 10**digits
    assert rounds_to(round(value), printed)
    assert not rounds_to(round(value + 0.6 * last) + 1, printed)
    assert truncates_to(int(value + 0.9 * last), printed)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="got 'many'"):
        parse_printed("many")
    with pytest.raises(ValueError, match="tables 1 to 8, got 9"):
        rows(9)


def test_own_results_are_read(tmp_path):
    runs = [
        {
            "model": "cifar_resnet32_global",
            "dataset": "cifar10",
            "accuracy": [90.0, 92.0],
            "epochs": 3,
            "seeds": [0, 1],
        },
        {"model": "cifar_resnet32", "dataset": "CIFAR-10", "accuracy": 91.5},
        {"model": "cifar_resnet32", "dataset": "fashion-mini", "accuracy": 80.0},
        {"model": "cifar_resnet32", "dataset": "cifar10", "accuracy": None},
        {"model": "cifar_resnet32", "dataset": "cifar10", "accuracy": 1.0, "recipe": {"model": {"kwargs": {"K": 1}}}},
    ]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    (tmp_path / "other.json").write_text("[1, 2]")
    assert find_runs(read_results(tmp_path), "cifar_resnet32", "fashion-mini").accuracies == (80.0,)
    table = build_table(1, results=tmp_path)
    assert [(e.accuracy, len(e.own.accuracies), e.own.epochs) for e in table.entries] == [
        (91.5, 1, ""),
        (None, 0, ""),
        (91.0, 2, "3"),
    ]
    text = render(table)
    for words in ("91.00 e", "e  ours: 3 epochs, 2 seeds", "91.50 b", "b  ours: 1 seed"):
        assert words in text
    sweep = build_table(6, results=tmp_path)  # a run with the default K is the one of K = 5
    assert [len(e.own.accuracies) for e in sweep.entries] == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0]


def own_run(model, dataset, accuracy, **kwargs):
    return {"model": model, "dataset": dataset, "accuracy": accuracy, "recipe": {"model": {"kwargs": kwargs}}}


def test_own_runs_are_found_by_the_options_of_their_network(tmp_path):
    """CIFAR-100 needs its number of classes, DARTS its auxiliary head, Table 6 its K: all of them are keywords."""
    fitted = {"diffusion": "depthwise", "coef_bias": False}
    runs = [
        own_run("cifar_resnet32_global", "cifar100", 60.0, num_classes=100),
        own_run("cifar_resnet32_global", "cifar10", 70.0, K=3),
        own_run("cifar_resnet32_global", "cifar10", 71.0, global_options={"K": 20}),
        own_run("cifar_resnet32_global", "cifar10", 72.0, global_options={"dt": 0.1}),
        own_run("cifar_darts_tiny", "cifar10", 80.0, aux_logits=True, drop_path_rate=0.2),
        own_run("cifar_wrn40_4_global", "cifar100", 50.0, num_classes=100, global_options=fitted),
        own_run("cifar_resnet_tiny_global", "cifar10", 81.0, reading="text"),
        own_run("cifar_resnet_tiny_global", "cifar10", 82.0, reading="counts"),
        own_run("cifar_resnet_tiny_global", "cifar10", 79.0, no_global=True),
    ]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    found = {(e.row.name, e.row.dataset): e for e in build_table(3, results=tmp_path).entries}
    assert found["ResNet-Global", "CIFAR-100"].accuracy == 60.0
    assert found["ResNet-Global", "CIFAR-10"].accuracy is None  # none of the runs on CIFAR-10 is this network
    assert found["tiny DARTS", "CIFAR-10"].accuracy == 80.0
    assert found["WRN-Global", "CIFAR-100"].accuracy == 50.0
    tiny = found["tiny ResNet-Global", "CIFAR-10"]
    assert (tiny.accuracy, tiny.own_text.mean) == (82.0, 81.0)
    assert tiny.to_dict()["accuracy_text"] == 81.0
    assert tiny.to_dict()["accuracy_null"] == 79.0
    text = " ".join(render(build_table(3, results=tmp_path)).split())
    assert "as the text reads: 81.00 %, 1 seed; without its Global layers: 79.00 %, 1 seed" in text
    sweep = {(e.row.name, e.row.dataset): e.accuracy for e in build_table(6, results=tmp_path).entries}
    assert {key: a for key, a in sweep.items() if a is not None} == {
        ("K = 5", "CIFAR-100"): 60.0,
        ("K = 3", "CIFAR-10"): 70.0,
        ("K = 20", "CIFAR-10"): 71.0,
    }


# parameters for 10 and 100 classes where D is depth-wise everywhere but 1 in the nets of low budget on CIFAR-10
AS_THE_TEXT_READS = {
    "cifar_resnet32_global": (161_850, 167_700),
    "cifar_resnet56_global": (330_362 + 24 * 112, 336_212 + 24 * 112),
    "cifar_densenet_bc100_global": (465_442, 481_192),
    "cifar_wrn40_4_global": (2_789_322 + 24 * 448, 2_812_452 + 24 * 448),
    "cifar_darts_global": (783_298 + 24 * 432, 835_228 + 24 * 432),
    "cifar_resnet_tiny_global": (14_393 - 22 * 35, 15_923),
    "cifar_wrn_tiny_global": (22_786 - 24 * 56, 24_676),
    "cifar_darts_tiny_global": (33_650, 40_940 + 24 * 60),
}


@pytest.mark.parametrize("model, params", AS_THE_TEXT_READS.items())
def test_counts_as_the_text_reads(model, params):
    """24 C is what two depth-wise producers of C channels have: 9 + 9 weights, two biases, two norms."""
    for dataset, expected in zip(("CIFAR-10", "CIFAR-100"), params, strict=True):
        row = next(row for row in ROWS if (row.table, row.model, row.dataset) == (3, model, dataset))
        other = as_the_text_reads(row)
        assert count(other).params == expected
        text = build_table(3, results=None).entries[rows(3).index(row)].text
        assert (text is None) == (expected == count(row).params)


def test_cells_seconds_and_savings_have_columns():
    table = build_table(4, results=None)
    text = render(table)
    for words in ("cells", "V100 s", "saving", "27+0", "119.00", "6.71", "2.6x", "4.1x"):
        assert words in text
    rows = {row["name"]: row for row in table.to_dicts()}
    assert rows["DARTS-Global"]["replaces"] == "DARTS"
    assert (rows["DARTS-Global"]["v100_train_s"], rows["DARTS-Global"]["cells_published"]) == (61.0, "6+3")
    assert "V100" not in render(build_table(7, results=None))


@pytest.mark.parametrize("number", [1, 3, 4, 5])
def test_a_net_saves_what_the_net_of_its_dataset_has_more(number):
    table = build_table(number, results=None)
    rows = {(row["name"], row["dataset"]): row for row in table.to_dicts()}
    saving = [row for row in rows.values() if row["replaces"]]
    assert {row["name"] for row in saving} == {name for name, _ in rows if "-Global" in name}
    for row in saving:
        base = rows[row["replaces"], row["dataset"]]
        for kind, cost in (("saves_params", "params_with_classifier"), ("saves_macs", "macs_exact")):
            assert row[kind] == base[cost] / row[cost]
        assert f"{row['saves_params']:.1f}x" in render(table)
    assert all(row["saves_params"] is None for row in rows.values() if not row["replaces"])


def test_efficientnet_saves_what_it_saves_like_for_like():
    row = next(e for e in build_table(5, results=None).entries if e.row.name == "EfficientNet-B0-Global")
    assert (round(row.saves_params, 2), round(row.saves_macs, 2)) == (1.44, 1.64)
    assert "classifiers and PDE steps counted on both sides" in render(build_table(5, results=None))


# [KS22, Table 4]; of the two rows in which ours differs, the parameters demand it
CELLS = {
    "cifar_resnet32": "15+0",
    "cifar_resnet32_global": "4+3",
    "cifar_resnet56": "27+0",
    "cifar_resnet56_global": "8+3",
    "cifar_densenet_bc100": "48+0",
    "cifar_densenet_bc100_global": "24+2",
    "cifar_wrn40_4": "18+0",
    "cifar_wrn40_4_global": "3+3",
    "cifar_darts": "20+0",
    "cifar_darts_global": "6+2",
}


def test_the_depth_is_counted_in_cells():
    shown = [row for row in ROWS if row.table in (1, 4) and row.model != "cifar_mdeq_small"]
    assert {row.model: count_cells(row) for row in shown} == CELLS
    apart = {row.model for row in shown if row.cells and row.cells != CELLS[row.model]}
    assert apart == {"cifar_resnet32_global", "cifar_resnet56_global", "cifar_darts_global"}


def test_the_table_says_which_reading_gives_which_count():
    text = " ".join(render(build_table(4, results=None)).split())
    assert "fitted to the printed counts; as the text reads: 333K, 30.8M MACs" in text
    assert as_the_text_reads(rows(1)[0]) is None


def render(table, width=220):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    return console.file.getvalue()


def test_rendering_shows_all_conventions_and_reasons():
    text = render(build_table(1, results=None))
    for words in ("thop", "conv", "+fc", "exact", "467K", "460K a", "a  option-A", "16M", "MDEQ (small)"):
        assert words in text
    assert "without the classifier" in render(Table(5, (Entry(rows(5)[6], None),)))


@pytest.mark.parametrize("number", TITLES)
def test_no_number_is_cut_in_80_columns(number):
    entries = (replace(e, latency_ms=1234.5, own=OwnRuns((91.25,))) for e in build_table(number, results=None).entries)
    table = Table(number, tuple(entries))
    text = render(table, width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    numbers = [word for line in render(table).splitlines()[3:] for word in line.split()[1:] if word[0].isdigit()]
    assert len(numbers) > 10
    assert not [word for word in numbers if word not in text.split()]


def test_csv_has_one_line_per_row():
    table = build_table(1, results=None)
    lines = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert [lines[0]["macs_exact"], lines[2]["macs_exact"]] == ["69124736", "16040576"]
    assert lines[0]["why_params_differ"].startswith("option-A")


def test_narrow_names_break_at_hyphens_only():
    table = Table(3, tuple(Entry(row, None) for row in rows(3)))
    with (console := Console(width=66)).capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= 66
    words = {line.split()[0] for line in lines if line[:1].isalpha()}
    assert {"ResNet-", "DenseNet-", "Global"} <= words
    assert not {"ResNet-Globa", "DenseNet-Glo", "l", "bal"} & words
