"""The tables of the pages say what benchmarks/results/edge.json holds."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "edge.py"
spec = importlib.util.spec_from_file_location("edge", SCRIPT)
edge = importlib.util.module_from_spec(spec)
spec.loader.exec_module(edge)


@pytest.mark.parametrize("heading, lines", edge.tables(edge.read()["rows"]).items())
def test_tables_are_those_of_the_results(heading, lines):
    holding = [path.read_text() for path in edge.PAGES if heading in path.read_text()]
    assert len(holding) == 1
    assert "\n".join([heading, *lines]) + "\n\n" in holding[0]
