"""The numbers that papers print, as data: one `Row` per row of Tables 1-8 of [KS22], with the network that we build.

[KS22] is "Condensing CNNs with Partial Differential Equations", CVPR 2022. The rows stand in `published.yaml`. Figures
are kept as strings, as printed, for their precision is part of them. Where our count does not round to the printed
figure, the row says why; most configurations are not stated in the paper and were found by fitting its counts.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdecnn.shared.yaml_files import parse_yaml

UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Row:
    """A row of a table and the network we build for it.

    Attributes:
        table: Number of the table.
        name: The row's name in the paper.
        dataset: MNIST, CIFAR-10, CIFAR-100 or ImageNet.
        accuracy: Published top-1 accuracy in per cent.
        params: Published parameters, as printed; empty if none are.
        macs: Published multiply-adds, as printed; empty if none are.
        model: The model's name in the registry; empty if we do not build it.
        options: What `timm.create_model` is given.
        convention: Which of our counts the published MACs are compared with: `"thop"` or `"conv_fc"`.
        with_classifier: Whether the published parameters include those of the classifier.
        params_differ: Why the published parameters are not met; empty if they are.
        macs_differ: Why the published MACs are not met; empty if they are.
        cells: Blocks of the original net and Global layers, as printed, such as `"6+3"`.
        train_s: Seconds of a training pass on a V100, as printed.
        infer_s: Seconds of an inference pass on a V100, as printed.
        replaces: Name of the row of the same table whose net this one condenses.
        remark: Anything else that the paper prints in this row.
    """

    table: int
    name: str
    dataset: str
    accuracy: float | None = None
    params: str = ""
    macs: str = ""
    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    convention: str = "thop"
    with_classifier: bool = True
    params_differ: str = ""
    macs_differ: str = ""
    cells: str = ""
    train_s: float | None = None
    infer_s: float | None = None
    replaces: str = ""
    remark: str = ""

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """One image of the dataset."""
        return {"MNIST": (1, 1, 28, 28), "ImageNet": (1, 3, 224, 224)}.get(self.dataset, (1, 3, 32, 32))

    @property
    def has_readings(self) -> bool:
        """Whether the network can be built as the counts and as the text have it, see `GlobalOptions`."""
        return bool(re.fullmatch(r"(cifar|mnist_resnet)\w*_global\w*", self.model))

    @property
    def num_classes(self) -> int:
        """Classes of the dataset."""
        return {"CIFAR-100": 100, "ImageNet": 1000}.get(self.dataset, 10)


def parse_printed(printed: str) -> tuple[float, float]:
    """The value of a printed figure and the unit of its last digit.

    Example:
        >>> parse_printed("1.30B"), parse_printed("524")
        ((1300000000.0, 10000000.0), (524.0, 1.0))
    """
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?([KMB]?)", printed)
    if match is None:
        raise ValueError(f"parse_printed: expected a figure such as '15M' or '9.94K', got {printed!r}.")
    unit = UNITS[match[3]]
    return float(printed.rstrip("KMB")) * unit, unit / 10 ** len(match[2] or "")


def rounds_to(count: int, printed: str) -> bool:
    """Whether `count`, rounded to as many digits, is the printed figure.

    Example:
        >>> rounds_to(161_850, "162K"), rounds_to(466_906, "460K"), rounds_to(466_906, "467K")
        (True, False, True)
    """
    value, unit = parse_printed(printed)
    return abs(count - value) <= unit / 2


def truncates_to(count: int, printed: str) -> bool:
    """Whether `count`, cut off after as many digits, is the printed figure."""
    value, unit = parse_printed(printed)
    return value <= count < value + unit


def rows(table: int | None = None) -> list[Row]:
    """All rows, or those of one table."""
    if table is not None and table not in TITLES:
        raise ValueError(f"rows: the paper has tables 1 to {max(TITLES)}, got {table}.")
    return [row for row in ROWS if table in (None, row.table)]


def _read() -> tuple[dict[int, str], dict[str, str], tuple[Row, ...]]:
    """Titles, reasons and rows of the data file."""
    path = Path(__file__).with_name("published.yaml")
    content = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    reasons: dict[str, str] = content["reasons"]
    found = []
    for number, table in content["tables"].items():
        for values in table["rows"]:
            named = {
                k: reasons.get(values[k], values[k]) for k in ("params_differ", "macs_differ", "remark") if k in values
            }
            found.append(Row(number, **{**values, **named}))
    return {number: table["title"] for number, table in content["tables"].items()}, reasons, tuple(found)


TITLES, REASONS, ROWS = _read()
TRUNCATED = REASONS["truncated"]
