"""Tables in 80 columns and as HTML."""

import io
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pdecnn.shared.tables import make_table, short, to_html


def render(table, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()


def test_text_folds_and_numbers_stay_whole():
    table = make_table("Long names", ["name", "kind"], ["a", "b", "c", "d"])
    numbers = ["1,814,073,344", "22,284,192", "9.99 -> 1.23", "123.45"]
    table.add_row("a_very_long_name_of_a_module_without_any_blank" * 2, "words that may well be wrapped", *numbers)
    text = render(table)
    assert all(number in text for number in numbers)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    joined = "".join(text.split())
    assert joined.count("a_very") == 2


def test_many_columns_stand_closer():
    few, many = (make_table("", ["x"], [str(i) for i in range(n)]) for n in (7, 8))
    for table in (few, many):
        table.add_row("x", *["123"] * (len(table.columns) - 1))
    assert "123  123" in render(few)
    assert "123 123" in render(many)


@given(st.integers(0, 999 * 10**12))
def test_a_short_count_has_three_digits(n):
    text = short(n)
    assert len(text) <= 5
    value = float(text.rstrip("KMGT")) * 1000 ** "_KMGT".index(text[-1] if text[-1] in "KMGT" else "_")
    assert value == pytest.approx(n, rel=5e-3)


class Cells(HTMLParser):
    """The cells of a table, and its tags in balance."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.open = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append((tag, dict(attrs)["style"], ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            tag, style, text = self.cells[-1]
            self.cells[-1] = (tag, style, text + data)


def test_html_has_all_cells_escaped_and_aligned():
    table = make_table("a < b", ["name"], ["n"])
    table.add_row("<script>", "1 & 2")
    text = to_html(table)
    assert "<script>" not in text
    assert "a &lt; b" in text
    left, right = "text-align: left", "text-align: right"
    expected = [("th", left, "name"), ("th", right, "n"), ("td", left, "<script>"), ("td", right, "1 & 2")]
    assert Cells(text).cells == expected
