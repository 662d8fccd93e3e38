"""Tables for 80 columns and for notebooks: text folds, numbers are never cut."""

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from rich import box
from rich.console import Console
from rich.containers import Lines
from rich.table import Table
from rich.text import Text

MANY = 8  # columns; more of them stand closer


class Name(Text):
    """A name that breaks after spaces and hyphens where its column is narrow.

    Example:
        >>> from rich.console import Console
        >>> [line.plain for line in Name("tiny ResNet-Global").wrap(Console(), 11)]
        ['tiny ', 'ResNet-', 'Global']
    """

    def wrap(self, console: Console, width: int, **options: Any) -> Lines:
        """The lines of the name, no wider than `width`."""
        lines = [""]
        for part in re.split(r"(?<=[-\s])", self.plain):
            if lines[-1] and len((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
        return Text("\n".join(lines)).wrap(console, width, **options)


def make_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """An empty table: columns of text, which give way where the terminal is narrow, and of numbers, which do not.

    Example:
        >>> make_table("Costs", ["layer"], ["params", "MACs"]).columns[1].no_wrap
        True
    """
    gap = 1 if len(texts) + len(numbers) <= MANY else 0
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, show_edge=False, padding=(0, gap, 0, 0), title_justify="left")
    for header in texts:
        table.add_column(header, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def short(n: float) -> str:
    """A count in at most five characters.

    Example:
        >>> short(950), short(22_386), short(13_202_880)
        ('950', '22.4K', '13.2M')
    """
    for unit in ("", "K", "M", "G", "T"):
        if n < 999.5 or unit == "T":
            return f"{n:.0f}" if not unit else f"{n:.3g}{unit}"
        n /= 1000
    raise AssertionError("unreachable")


def to_html(table: Table) -> str:
    """The table as HTML that needs no style sheet, for a notebook or a page.

    Example:
        >>> table = make_table("Costs", ["layer"], ["params"])
        >>> table.add_row("conv", "9.4K")
        >>> to_html(table).count("<td")
        2
    """

    def row(tag: str, cells: Sequence[object]) -> str:
        sides = [column.justify if column.justify == "right" else "left" for column in table.columns]
        inner = "".join(
            f'<{tag} style="text-align: {side}">{escape(str(cell))}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{inner}</tr>"

    caption = f"<caption>{escape(str(table.title))}</caption>" if table.title else ""
    head = row("th", [column.header for column in table.columns])
    body = "\n".join(row("td", cells) for cells in zip(*(column.cells for column in table.columns), strict=True))
    return f"<table>{caption}<thead>{head}</thead>\n<tbody>{body}</tbody></table>"
