"""The documents: links lead somewhere, named files exist, and the citation is in step."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
CHECKLISTS = ["notation.md", "adding-an-op.md", "adding-a-layer.md", "adding-a-model.md", "../CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


def test_citation_names_the_release_and_every_key():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    installed, cited_version = Version(version("pdecnn")), str(citation["version"])
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if installed.is_devrelease:  # between tags: the citation names the release that is the newest, or is to come
        assert f"## [{cited_version}]" in changes or f"To become {cited_version}," in changes
    else:
        assert Version(cited_version) == installed
    cited = {reference["notes"].split(":")[0] for reference in citation["references"]}
    keys = set(re.findall(r"^\| (\[\w+\]) \|", (DOCS / "notation.md").read_text(encoding="utf-8"), re.M))
    assert cited == keys


def test_every_key_that_the_code_cites_is_explained():
    notation = (DOCS / "notation.md").read_text(encoding="utf-8")
    used = set()
    for path in (ROOT / "src").rglob("*.py"):
        used |= set(re.findall(r"\[([A-Z]{2,3}\d{2}|RD)[],]", path.read_text(encoding="utf-8")))
    assert {"KS22", "LSB23", "RD"} <= used
    assert [key for key in sorted(used) if f"| [{key}] |" not in notation] == []


def test_every_named_file_of_the_checklists_exists():
    """Paths are relative to the package, its kernels or the repository; NAME and the worked examples are patterns."""
    missing = []
    worked = ("decay", "heat_net")
    for name in CHECKLISTS:
        for path in re.findall(
            r"`([\w./-]+/[\w.-]+\.(?:py|h|cpp|md|json))`", (DOCS / name).read_text(encoding="utf-8")
        ):
            homes = (ROOT, ROOT / "src/pdecnn", ROOT / "src/pdecnn/kernels")
            if not any(word in path for word in ("NAME", *worked)) and not any(
                (home / path).exists() for home in homes
            ):
                missing.append(f"{name}: {path}")
    assert missing == []
