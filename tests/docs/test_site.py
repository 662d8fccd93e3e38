"""The documentation as a site: nothing is left out, figures are those of the files, and it builds without a warning."""

import json
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from statistics import mean

import pytest
from house import results
from house.names import ROOMS, homes, public_names

import pdecnn

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
MADE = ("_generated", "learn")  # by a build


def pages():
    found = [p.relative_to(DOCS).with_suffix("") for kind in ("md", "rst") for p in DOCS.rglob(f"*.{kind}")]
    return {p.as_posix() for p in found if p.parts[0] not in (*MADE, "tutorials")}


def toctrees(page):
    """What the tables of contents of a page name, relative to docs/."""
    path = next(p for p in (DOCS / f"{page}.md", DOCS / f"{page}.rst") if p.is_file())
    text = path.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.M | re.S)
    blocks += re.findall(r"^\.\. toctree::\n((?:(?:   .*)?\n)+)", text, re.M)
    names = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    inside = [(path.parent / name).resolve() for name in names if not name.startswith(":")]
    return {p.relative_to(DOCS.resolve()).as_posix() for p in inside}


def test_every_page_is_in_a_table_of_contents():
    named, todo = {"index"}, ["index"]
    while todo:
        new = {p for p in toctrees(todo.pop()) if p not in named}
        named |= new
        todo += [p for p in new if p in pages()]
    assert "the-other-pages" in named, "which stands for pages of docs/ that are not named"
    flat = {p for p in pages() if "/" not in p}
    assert pages() - flat - named == set()
    assert {p for p in named if p not in pages()} == {"the-other-pages", "learn/index"}


def test_every_room_has_a_page_and_every_name_an_entry():
    shown = set()
    for page in (DOCS / "reference").glob("*.rst"):
        shown |= set(re.findall(r"^\.\. public-names:: (\S+)", page.read_text(encoding="utf-8"), re.M))
    rooms = {
        f"pdecnn.{n}" for n in pdecnn.__all__ if f"pdecnn.{n}" in sys.modules or (ROOT / f"src/pdecnn/{n}").is_dir()
    }
    rooms = {r for r in rooms if hasattr(import_module(r), "__path__")}
    assert shown == set(ROOMS) == {"pdecnn", *rooms}
    where = homes()
    assert {f"{room}.{name}" for room in ROOMS for name in public_names(room)} == set(where)
    assert where["pdecnn.condensation.condense"] == "pdecnn.condense"
    assert where["pdecnn.functional.hardball"] == "pdecnn.reference.hardball"
    assert where["pdecnn.functional.advection_diffusion"] == "pdecnn.functional.advection_diffusion"


def test_every_name_of_a_group_is_public():
    for room in ROOMS:
        path = DOCS / "reference" / f"{room.rpartition('.')[2]}.rst"
        groups = re.findall(r"^   [A-Z][^:\n]*: (.*)$", path.read_text(encoding="utf-8"), re.M)
        named = [name for group in groups for name in group.split()]
        assert [n for n in named if n not in public_names(room)] == []
        assert len(named) == len(set(named))


FRONTIERS = {"frontier", "frontier_cifar10"}  # tables that a page has in words of its own


def test_every_directive_finds_what_it_names():
    known = {"results": set(results.TABLES)}
    for kind, file in (("plot", "pictures"), ("drawing", "drawings")):
        text = (DOCS / "house" / f"{file}.py").read_text(encoding="utf-8")
        known[kind] = set(re.findall(r"^def (\w+)\(", text, re.M))
    used = set()
    for page in pages():
        path = next(p for p in (DOCS / f"{page}.md", DOCS / f"{page}.rst") if p.is_file())
        for kind, name in re.findall(r"(?:```\{|<!-- )(results|plot|drawing)(?:\}|:) (\w+)", path.read_text("utf-8")):
            assert name in known[kind], f"{page}: {kind} {name}"
            used.add((kind, name))
    assert {name for kind, name in used if kind == "results"} == set(results.TABLES) - FRONTIERS
    assert {name for kind, name in used if kind == "plot"} >= FRONTIERS


@pytest.mark.parametrize("name", results.TABLES)
def test_tables_of_results(name):
    text = results.TABLES[name]()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) <= 1
    assert len(rows) > 2 or "Not measured yet" in text


@pytest.mark.parametrize("name", sorted(FRONTIERS))
def test_the_frontier_of_its_page_is_that_of_its_file(name):
    """Rows are found by their figures: the page names networks in words."""
    page = (DOCS / "frontier.md").read_text(encoding="utf-8")
    for line in results.TABLES[name]().splitlines()[2:]:
        _, _, params, _, *figures, _ = (cell.strip() for cell in line.split("|"))
        assert " | ".join([params, *figures]) in page, line


def test_the_plain_sentences_of_the_questions():
    faq = " ".join((DOCS / "faq.md").read_text(encoding="utf-8").split())
    nets = results.read("condense_imagenette_resnet18")["nets"]["resnet18"]
    teacher = nets["job"]["accuracies"]["teacher"]
    lost = [round(teacher - x["accuracies"]["distilled"]) for x in (nets["job"], nets["null"])]
    assert lost == [1, 4]
    assert "lost one point with `pde` and four without it" in faq
    nets = results.read("condense_imagenette")["nets"]["tf_efficientnet_lite0"]
    assert nets["times"]["onnx_ms"]["condensed"] > nets["times"]["onnx_ms"]["null"]
    assert nets["job"]["accuracies"]["distilled"] <= nets["null"]["accuracies"]["distilled"]
    assert "it was slower and no more accurate than the same net with the blocks left out" in faq
    assert results.read("savings")["resnet32"]["macs_ratio"]["exact"] > 4
    slow = [
        r for r in results.read("deploy")["rows"] if (r["model"], r["runtime"]) == ("cifar_resnet32_global", "onnx")
    ]
    assert next(r["faster"] for r in slow if r["batch"] == 64) < 1
    assert "less than a quarter of its multiply-adds" in faq
    assert "the slower one of the two at batch 64" in faq
    found = results.read("frontier-fashion")
    frontier = found["nets"]
    of = {name: mean(s["test"] for s in net["seeds"].values()) for name, net in frontier.items()}
    fast = {name: net["times"]["onnx"]["1"]["speedup"] for name, net in frontier.items() if net.get("times")}
    ahead = [n for n in fast if n.startswith("pde") and fast[n] > fast["separable"] and of[n] > of["separable"]]
    assert ahead == []
    assert "**no PDE is ahead of a separable block**" in faq
    pruned = {name for name in of if name.startswith("pruned")}
    rivals = [of[name] for name in pruned if fast[name] > 0.9 * fast["pde K=1, 2 blocks"]]
    for name in ("pde K=1, 2 blocks", "separable, 2 blocks"):
        assert 0.9 < of[name] - max(rivals) < 1.1
        assert 2.1 < fast[name] < 2.3
    assert "is a point above the best pruned net of its speed" in faq
    half, one = "pruned group-norm 0.5", "separable"
    assert of[half] == max(of[name] for name in pruned if name.endswith(" 0.5"))
    assert abs(of[one] - of[half]) < 0.3
    assert 2.1 < fast[one] / fast[half] < 2.5
    assert (
        "as one with half of its channels pruned, within what three seeds can tell, at more than twice its speed" in faq
    )
    assert 6.5 < of[one] - max(of[name] for name in pruned if fast[name] > 2.5) < 7.5
    assert "three times as fast as its teacher is seven points below" in faq
    slight = [name for name in of if name in (*pruned, "inner 0.5") and fast[name] < 1.2]
    assert all(of[name] > found["teacher"]["test"] - 0.4 for name in slight)
    assert {name.split()[-1] for name in slight} == {"0.25", "0.5"}
    worth = [of[name] - of["nothing"] for name in ("separable", "depthwise", "pde")]
    said = f"is worth {min(worth):.1f} to {max(worth):.1f} points over nothing"
    page, readme = (
        " ".join(p.read_text(encoding="utf-8").split()) for p in (DOCS / "frontier.md", DOCS / "../README.md")
    )
    assert all(said in text for text in (faq, page, readme))
    assert fast["nothing"] > max(fast[name] for name in ("separable", "depthwise", "pde"))


def test_the_plain_sentence_of_inner_channels():
    page = " ".join((DOCS / "frontier.md").read_text(encoding="utf-8").split())
    found = results.read("frontier-fashion")
    net, rows = found["nets"]["inner 0.5"], found["nets"]["inner 0.5"]["seeds"]
    first, second, third = (f"{row['test']:.2f}" for row in rows.values())
    assert f"({first}, {second} and {third} %)" in page
    quarter = found["nets"]["pruned group-norm 0.25"]
    assert all(1.05 < of["times"]["onnx"]["1"]["speedup"] < 1.15 for of in (net, quarter))
    assert "Either is 1.1 times as fast, and dropping blocks" in page
    before, teacher = rows["0"]["held_before"], found["teacher"]["held"]
    assert f"have before any training {before:.2f} % of the held-out images, the teacher {teacher:.2f} %" in page
    others = [n for name, n in found["nets"].items() if name not in ("inner 0.5", "teacher, 8 bits")]
    assert mean(row["test"] for row in rows.values()) > max(results.seed_mean(n, "test") for n in others)


def test_the_plain_sentences_of_the_frontier():
    page = " ".join((DOCS / "frontier.md").read_text(encoding="utf-8").split())
    nets = results.read("frontier-fashion")["nets"]
    of = {name: results.seed_mean(net, "test") for name, net in nets.items()}
    fast = {name: net["times"]["onnx"]["1"]["speedup"] for name, net in nets.items()}
    assert [name for name, net in nets.items() if len(net["seeds"]) < 3] == ["teacher, 8 bits"]
    said = f"A quarter of the inner channels still gives {of['inner 0.25']:.2f} %"
    assert said in page
    assert 1.8 < fast["pde K=1, 2 blocks"] / fast["inner 0.25"] < 2
    both, bare = "pde K=1, 2 blocks, inner 0.5", "nothing, 2 blocks"
    assert f"have {of[both]:.2f} % at {fast[both]:.1f} times" in page
    assert of[bare] > of[both]
    assert fast[bare] > fast[both]
    narrow = [f"{name}, width 0.75" for name in ("pde", "separable")]
    said = "have {:.2f} % (`pde`) and {:.2f} % (`separable`) at {:.1f} and {:.1f} times"
    assert said.format(*(of[name] for name in narrow), *(fast[name] for name in narrow)) in page
    assert max((n for n in nets if nets[n]["params"] < 13_000), key=of.__getitem__) == narrow[0]
    pruned = {name for name in of if name.startswith("pruned")}
    assert len(pruned) == 15
    near = max((name for name in pruned if 2 < fast[name] < 2.2), key=of.__getitem__)
    two = [of[f"{name}, 2 blocks"] for name in ("pde K=1", "separable")]
    said = "{:.1f} and {:.1f} % at 2.2 times in ONNX Runtime, the best pruned net near that {:.1f} % at {:.1f}"
    assert said.format(*two, of[near], fast[near]) in page
    assert f"{of['separable']:.1f} % at {fast['separable']:.1f} times" in page
    beyond = [name for name in pruned if fast[name] > 2.4]
    assert max(of[name] for name in beyond) < 79.5
    assert f"no net is above 79.5 %, at {max(fast[name] for name in beyond):.1f} times" in page
    for ratio in ("0.25", "0.375", "0.5", "0.625", "0.75"):
        rivals = {kind: of[f"pruned {kind} {ratio}"] for kind in ("group-norm", "magnitude", "taylor")}
        assert max(rivals, key=rivals.__getitem__) == "group-norm"
    gains = [of[f"{name}, 2 blocks"] - of["nothing, 2 blocks"] for name in ("pde K=1", "separable")]
    assert all(0.15 < gain < 0.35 for gain in gains)
    bare = [of[name] for name in ("nothing", "nothing, 2 blocks", "plain, 1 block(s)", "plain, 2 block(s)")]
    said = (
        "the null has {:.1f} and {:.1f} % with one and two blocks, the same nets from random weights and with the same "
    )
    assert (said + "distillation {:.1f} and {:.1f} %").format(*bare) in page
    assert nets["plain, 2 block(s)"]["params"] == nets["nothing, 2 blocks"]["params"]
    assert fast["pde, 2 blocks"] < fast["pde K=1, 2 blocks"]
    assert nets["paper"]["times"]["onnx"]["1"]["speedup"] < 1 < nets["paper"]["times"]["onnx-fused"]["1"]["speedup"]
    assert fast["teacher, 8 bits"] < 1.1


def test_the_plain_sentence_of_the_designs():
    page = " ".join((DOCS / "condense.md").read_text(encoding="utf-8").split())
    rows = list(results.read("design")["designs"].values())
    assert len(rows) == 13
    assert "Of thirteen designs" in page
    best = max((r for r in rows if r["speedup"] > 3), key=lambda r: r["seeds"]["0"]["held"])
    default = {"replacement": "pde", "K": 1, "options": {"reaction": True, "share": 1, "implicit": False}}
    assert best["design"] == default
    plain = next(r for r in rows if r["design"]["replacement"] == "separable")
    assert "{:.2f} %, beside {:.2f} % of `separable`".format(*(r["seeds"]["0"]["held"] for r in (best, plain))) in page
    implicit = max(rows, key=lambda r: r["seeds"]["0"]["held"])
    assert implicit["design"]["options"]["implicit"]
    assert f"has {implicit['seeds']['0']['held']:.2f} % at {implicit['speedup']:.1f} times" in page
    bare = [r for r in rows if not r["design"].get("options", {"reaction": True})["reaction"]]
    assert all(best["seeds"]["0"]["held"] - r["seeds"]["0"]["held"] > 1 for r in bare)


def test_the_designs_have_the_same_order_on_cifar10():
    page = " ".join((DOCS / "condense.md").read_text(encoding="utf-8").split())
    rows = list(results.read("design-cifar10")["designs"].values())
    held = {json.dumps(r["design"], sort_keys=True): r["seeds"]["0"]["held"] for r in rows}
    assert len(rows) == 8
    fast = [r for r in rows if r["speedup"] > 3.1]
    default = {"replacement": "pde", "K": 1, "options": {"reaction": True, "share": 1, "implicit": False}}
    best = max(fast, key=lambda r: r["seeds"]["0"]["held"])
    assert best["design"] == default
    implicit = max(rows, key=lambda r: r["seeds"]["0"]["held"])
    assert implicit["design"]["options"]["implicit"]
    said = "the same: {:.2f} % at {:.1f} times, `separable` {:.2f} %, an implicit diffusion {:.2f} % at {:.1f} times"
    ours, other = best["seeds"]["0"]["held"], implicit["seeds"]["0"]["held"]
    plain = held[json.dumps({"replacement": "separable"})]
    assert said.format(ours, best["speedup"], plain, other, implicit["speedup"]) in page
    (bare,) = (r for r in rows if not r["design"].get("options", {"reaction": True})["reaction"])
    assert 6 < ours - bare["seeds"]["0"]["held"] < 7


def test_the_plain_sentence_of_cifar10():
    nets = results.read("frontier-cifar10")["nets"]
    nets = {name: net for name, net in nets.items() if net["seeds"] and net.get("times")}  # trained and timed
    of = {name: mean(s["test"] for s in net["seeds"].values()) for name, net in nets.items()}
    fast = {name: net["times"]["onnx"]["1"]["speedup"] for name, net in nets.items()}
    pruned = "pruned group-norm 0.5"
    assert 2 < of["separable, 2 blocks"] - of[pruned] < 4
    assert 1.05 < fast["separable, 2 blocks"] / fast[pruned] < 1.2
    assert all(abs(of[name] - of[pruned]) < 0.5 for name in ("separable", "pde K=1"))
    assert all(fast[name] / fast[pruned] > 2 for name in ("separable", "pde K=1"))
    assert all(3.5 < of[name] - of["nothing"] < 4.5 for name in ("separable", "pde K=1"))
    assert [name for name in of if name.startswith("pruned") and fast[name] > 3] == ["pruned group-norm 0.75"]
    assert all(15 < of[name] - of["pruned group-norm 0.75"] < 16 for name in ("separable", "pde K=1"))
    assert all(0.6 < of[f"{name}, 2 blocks"] - of["nothing, 2 blocks"] < 1.1 for name in ("separable", "pde K=1"))
    assert all(1.4 < of[name] - of["nothing"] < 1.7 for name in ("depthwise", "paper K=1"))
    best = max((name for name in of if fast[name] > 1.7), key=of.__getitem__)
    assert best == "teacher, 8 bits"
    assert 1.75 < fast[best] < 1.85
    assert fast["pde K=1, 2 blocks, 8 bits"] > 3.2
    assert of["pde K=1, 2 blocks"] - of["pde K=1, 2 blocks, 8 bits"] < 0.1
    pairs = {f"{of[name]:.2f} % at {speed:.1f}x" for name, speed in fast.items()}
    readme = " ".join((DOCS / "../README.md").read_text(encoding="utf-8").split()).split("On CIFAR-10 (one seed")[1]
    said = re.findall(r"[\d.]+ % at [\d.]+x", readme.split("In ONNX Runtime with our operators")[0])
    assert len(said) == 10
    assert [words for words in said if words not in pairs] == []
    page = " ".join((DOCS / "frontier.md").read_text(encoding="utf-8").split())
    for words in (
        "89.2 % at 2.4 times",
        "88.1 % at 1.3 times",
        "89.2 % at 3.5 times",
        "70.9 % at 3.9",
        "89.4 % at 1.5 times",
    ):
        assert words in page
        accuracy, speed = map(float, re.findall(r"[\d.]+", words))
        assert any(abs(of[name] - accuracy) < 0.0501 and abs(fast[name] - speed) < 0.0501 for name in fast)
    rivals = [of[name] for name in of if name.startswith("pruned") and nets[name]["params"] < 80_000]
    assert 3.5 < of["pde K=1"] - max(rivals) < 4.5
    assert of["separable, 2 blocks"] > of["inner 0.5"] + 0.1


def test_the_page_of_the_knob_has_its_figures():
    page = (DOCS / "knob.md").read_text(encoding="utf-8")
    data = results.read("knob")
    seeds = data["seeds"].values()
    assert len(seeds) == 3
    knob, alone = ({K: mean(s[n or K]["test"][K] for s in seeds) for K in ("1", "2", "5", "10")} for n in ("knob", ""))
    for K in knob:
        ms = [f"{data['ms'][runtime][K]:.2f}" for runtime in ("onnx", "onnx-fused")]
        assert " | ".join([f"| {K}", f"{knob[K]:.2f}", f"{alone[K]:.2f}", *ms]) in page
        assert -0.45 < knob[K] - alone[K] < 0.05
    assert all(max(0, knob[a] - knob[b]) < 0.05 for a, b in (("1", "2"), ("2", "5"), ("5", "10")))
    assert all(abs(s["knob"]["test"][K] - s[K]["test"][K]) < 0.85 for s in seeds for K in knob)
    null = results.read("frontier-fashion")["nets"]["nothing"]
    words = " ".join(page.split())
    assert f"has {mean(s['test'] for s in null['seeds'].values()):.2f} % after the same training" in words
    assert f"at {null['times']['onnx']['1']['speedup']:.1f} times the teacher's speed" in words
    assert all(s["1"]["test"]["10"] < 39.5 and s["10"]["test"]["1"] < 39.5 for s in seeds)


@pytest.mark.slow
def test_it_builds_without_a_warning(tmp_path):
    """Tutorials run, all links lead somewhere, nothing is loaded from elsewhere."""
    pytest.importorskip("sphinx", reason='needs pip install "pdecnn[docs]"')
    home = tmp_path / "project"  # what a build writes beside the pages stays out of the sources
    for part in ("docs", "benchmarks/results", "results", "src/pdecnn/kernels"):
        kept = shutil.ignore_patterns(*MADE, "*.so", "*.cpp", "*.h", "__pycache__")
        shutil.copytree(ROOT / part, home / part, ignore=kept)
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "README.md"):
        shutil.copy(ROOT / name, home)
    built = tmp_path / "built"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", home / "docs", built]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]

    from sphinx.util.inventory import InventoryFile

    inventory = InventoryFile.loads((built / "objects.inv").read_bytes(), uri="")
    listed = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
    assert set(homes()) - listed == set()
    for tutorial in (DOCS / "tutorials").glob("plot_*.py"):
        assert list((built / "_images").glob(f"sphx_glr_{tutorial.stem}_001*")), f"{tutorial.stem} drew nothing"
    assert (built / "_static/mathjax/tex-chtml.js").is_file()
    assert json.loads((built / "searchindex.js").read_text().removeprefix("Search.setIndex(").removesuffix(")"))
    loaded = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["'](?:https?:)?//|<link[^>]*\shref=["']https?://"""
    )
    assert [p.name for p in built.rglob("*.html") if loaded.search(p.read_text(encoding="utf-8"))] == []
