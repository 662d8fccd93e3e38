"""The directive `public-names`: every public name of a room, in groups."""

import inspect
import re
from importlib import import_module
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from house.names import homes, public_names


class PublicNames(SphinxDirective):
    """Summaries and descriptions of what a room gives; names that no group of the content has come last.

    `also` has the paths of types that are not public themselves but that public names take or give.
    """

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"also": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        """A table of each group, then all entries."""
        room = self.arguments[0]
        names, home = public_names(room), homes()
        groups = dict(line.split(": ", 1) for line in self.content if line.strip())
        named = {title: text.split() for title, text in groups.items()}
        unknown = [n for group in named.values() for n in group if n not in names]
        if unknown:
            raise self.error(f"{room} has no public {', '.join(unknown)}.")
        rest = [n for n in names if not any(n in group for group in named.values())]
        if rest:
            named["More" if named else "All"] = rest
        lines = []
        for title, group in named.items():
            if len(named) > 1:
                lines += [f".. rubric:: {title}", ""]
            lines += [".. list-table::", "   :widths: 1 2", "   :class: names", ""]
            for name in group:
                target = home[f"{room}.{name}"]
                lines += [f"   * - :py:obj:`{name} <{target}>`", f"     - {_summary(room, name)}"]
            lines.append("")
        own = [n for group in named.values() for n in group if home[f"{room}.{n}"] == f"{room}.{n}"]
        for name in own:
            lines += _entry(room, name)
        if also := self.options.get("also", "").split():
            lines += ["", ".. rubric:: Types that these speak of", ""]
            for path in also:
                lines += _entry(*path.rsplit(".", 1))
        found: list[Any] = self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)
        return found


def _entry(room: str, name: str) -> list[str]:
    thing = getattr(import_module(room), name)
    kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
    if kind == "class" and issubclass(thing, Exception):
        kind = "exception"
    return ["", "----", "", f".. auto{kind}:: {room}.{name}", *["   :members:"] * (kind == "class"), ""]


def _summary(room: str, name: str) -> str:
    """The first sentence of the docstring."""
    text = inspect.getdoc(getattr(import_module(room), name)) or ""
    first = " ".join(text.split("\n\n")[0].split())
    sentence = re.split(r"\.\s+(?=[A-Z`])", first)[0]  # "[RD, Eq. (9)]" is no end of one
    return sentence.rstrip(":.") + "." if first else ""


def alias(app: Sphinx, env: BuildEnvironment) -> None:
    """A name leads to its description by every way that it can be written, that of its definition too."""
    domain = env.domains.python_domain
    for name, home in homes().items():
        room, last = name.rsplit(".", 1)
        thing = getattr(import_module(room), last)
        entry = domain.objects.get(home)
        if entry is None:
            raise RuntimeError(f"{name} has no entry in the reference: {home} is missing.")
        for other in (name, f"{thing.__module__}.{thing.__qualname__}"):
            if other not in domain.objects:
                domain.objects[other] = ObjectEntry(entry.docname, entry.node_id, entry.objtype, True)
