"""What has a form in C and what is refused, by name: the tables of docs/edge.md, each line tried."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
import timm
import torch
from c_cases import NAMES, agrees, as_trained, weights_beside  # noqa: F401  (a fixture)
from torch import nn

from pdecnn.deploy.c.write import write
from pdecnn.deploy.check import CannotExportError

PAGE = Path(__file__).parents[3] / "docs" / "edge.md"
SIDES = {28: 28, 32: 16}  # of the images; 32 for all others
# an equilibrium stops when all samples of a batch are near enough, and a file has one: here none ever is
OPTIONS = {name: {"tol": 1e-12} for name in NAMES if "mdeq" in name}


def rows():
    """Of the table of models: the names of a line, how they are made, and why they are refused, if they are."""
    table = PAGE.read_text().partition("| models | with | C |\n")[2].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[1:]:
        patterns, options, verdict = (cell.strip() for cell in line.strip("|").split("|"))
        given = dict(part.split("=") for part in re.findall(r"`(\w+=\w+)`", options))
        for pattern in re.findall(r"`([^`]+)`", patterns):
            for name in (name for name in NAMES if fnmatch(name, pattern)):
                found.setdefault(name, []).append((given, verdict.removeprefix("refused: ")))
    return found


ROWS = rows()


def test_every_model_is_in_the_table():
    assert set(ROWS) == set(NAMES)
    for name, lines in ROWS.items():
        assert len({str(given) for given, _ in lines}) == len(lines), f"{name} stands twice"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_agrees_or_is_refused(name, weights_beside):  # noqa: F811
    for given, verdict in ROWS[name]:
        options = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        torch.manual_seed(0)
        model = as_trained(timm.create_model(name, **OPTIONS.get(name, {}), **options))
        C, side, _ = model.default_cfg["input_size"]
        # an equilibrium is solved until all samples of a batch have converged, in C each by itself
        x = torch.randn(1 if name.startswith("cifar_mdeq") else 2, C, *[SIDES.get(side, 32)] * 2)
        if verdict == "yes":
            agrees(model, x)
            continue
        with pytest.raises(CannotExportError, match=re.escape(verdict.strip("`"))):
            write(model, (x,), "net")


class Volumes(nn.Module):
    def forward(self, x):
        return nn.functional.conv3d(x[None], torch.ones(1, 1, 1, 1, 1))


def test_a_convolution_of_volumes_is_refused():
    with pytest.raises(CannotExportError, match="convolution of 3 dimensions"):
        write(Volumes(), (torch.randn(1, 4, 4, 4),), "net")
