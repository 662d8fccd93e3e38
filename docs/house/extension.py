"""Directives for the reference, for results, for papers and for drawings.

On a page that is also read as it is, a directive stands in a comment that only Sphinx sees: `<!-- plot: frontier -->`.
"""

import re
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from house import commands, papers, pictures, reference, results
from house.drawings import DRAWINGS

ROOT = Path(__file__).parents[2]
GENERATED = "_generated"
KERNELS = "kernels"


def parse(directive: SphinxDirective, text: str) -> list[nodes.Node]:
    """The nodes of a text with headings."""
    found: list[nodes.Node] = directive.parse_text_to_nodes(text, allow_section_headings=True)
    return found


class FromFiles(SphinxDirective):
    """Markdown that a function makes, found by its name."""

    required_arguments = 1
    tables: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """The nodes of what the function gives."""
        for folder in ("benchmarks/results", "results"):
            for path in (ROOT / folder).glob("*.json"):
                self.env.note_dependency(str(path))
        return parse(self, self.tables[self.arguments[0]]())


class Results(FromFiles):
    """A table of what was measured."""

    tables = results.TABLES


class Paper(FromFiles):
    """The tables of a paper, or one of them."""

    tables = papers.TABLES


class Commands(SphinxDirective):
    """Every command with its options."""

    def run(self) -> list[nodes.Node]:
        """One section for each."""
        return parse(self, commands.describe())


class Drawing(SphinxDirective):
    """A scheme, in the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The SVG."""
        return [nodes.raw("", DRAWINGS[self.arguments[0]](), format="html")]


class Plot(SphinxDirective):
    """A plot, for light and for dark pages."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Both pictures, of which the style sheet shows one; the content says what is seen."""
        name, words = self.arguments[0], " ".join(self.content)
        found: list[nodes.Node] = []
        for path in pictures.save(name, Path(self.env.srcdir) / GENERATED):
            uri = f"/{GENERATED}/{path.name}"
            theme = "only-light" if "-light" in path.name else "only-dark"
            lines = [f"```{{image}} {uri}", f":alt: {words or name}", f":class: {theme}", "```"]
            found += self.parse_text_to_nodes("\n".join(lines))
        text = self.parse_text_to_nodes(f"*{words}*") if words else []
        return [nodes.container("", *found, *text, classes=["plot"])]


def before_reading(app: Sphinx, docname: str, source: list[str]) -> None:
    """Comments that are directives, links to what lies outside of docs/, and pages that no table of contents names."""
    text = re.sub(r"<!-- (\w+): ([\w ]+) -->", r"```{\1} \2\n```", source[0])
    text = re.sub(r"\(\.\./src/pdecnn/kernels/(\w+)/README\.md\)", rf"({KERNELS}/\1.md)", text)
    text = re.sub(r"\((\.\./)?tutorials/(plot_\w+)\.py\)", r"(\1learn/\2.rst)", text)
    text = re.sub(r"\((\.\./)?tutorials\)", r"(\1learn/index.rst)", text)
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        text = text.replace(f"(../{name}.md)", f"(project/{name.lower()}.md)")
    source[0] = text.replace("the-other-pages", "\n".join(other_pages(Path(app.srcdir))))


def other_pages(docs: Path) -> list[str]:
    """Pages at the top of docs/ that no table of contents names: new ones appear by themselves."""
    lists = [docs / "index.md", *docs.glob("*/index.md")]
    named = {line.strip().removeprefix("../") for path in lists for line in path.read_text("utf-8").splitlines()}
    return [page.stem for page in sorted(docs.glob("*.md")) if page.stem not in named and page.stem != "index"]


def gallery_style(gallery_conf: dict[str, Any], fname: str) -> None:
    """Pictures of the tutorials: without a background, in greys that are read on white and on black."""
    import matplotlib

    matplotlib.rcdefaults()
    grey = "#7d858f"
    matplotlib.rcParams.update(
        {
            "figure.dpi": 110,
            "savefig.transparent": True,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "text.color": grey,
            "axes.labelcolor": grey,
            "axes.edgecolor": grey,
            "xtick.color": grey,
            "ytick.color": grey,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "font.size": 10,
        }
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Tells Sphinx of all of it."""
    app.add_directive("public-names", reference.PublicNames)
    app.add_directive("results", Results)
    app.add_directive("paper", Paper)
    app.add_directive("commands", Commands)
    app.add_directive("drawing", Drawing)
    app.add_directive("plot", Plot)
    app.connect("source-read", before_reading)
    app.connect("env-updated", reference.alias)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
