"""Numbers of a generated file: literals, and the arrays that stay in Flash."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def number(value: float) -> str:
    """A literal of the float nearest to `value`.

    Example:
        >>> number(0.1), number(2), number(float("-inf"))
        ('0.1f', '2.0f', '-from_bits(0x7f800000u)')
    """
    if math.isnan(value):
        return "from_bits(0x7fc00000u)"
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.isinf(single):
        return ("-" if value < 0 else "") + "from_bits(0x7f800000u)"
    return f"{single!s}f"


def _elements(flat: Any) -> list[str]:
    """Literals for an array, where no function may be called."""
    if np.isfinite(flat).all():
        return [f"{text}f" for text in flat.astype(str).tolist()]
    odd = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}
    return [odd.get(text, f"{text}f") for text in flat.astype(str).tolist()]


class Constants:
    """The arrays of a file; equal ones are kept once."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, bytes], str] = {}
        self.definitions: list[str] = []
        self.bytes = 0

    def floats(self, values: Any) -> str:
        """The name of an array of floats."""
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        return self._add("float", "w", flat, lambda: _elements(flat))

    def ints(self, values: Sequence[int]) -> str:
        """The name of an array of ints."""
        return self._integers("int", values, np.int32)

    def int32s(self, values: Any) -> str:
        """The name of an array of integers of 32 bits, which is not `int` everywhere."""
        return self._integers("int32_t", values, np.int32)

    def int8s(self, values: Any) -> str:
        """The name of an array of integers of 8 bits."""
        return self._integers("int8_t", values, np.int8)

    def int16s(self, values: Any) -> str:
        """The name of an array of integers of 16 bits."""
        return self._integers("int16_t", values, np.int16)

    def struct(self, kind: str, fields: Sequence[object]) -> str:
        """The name of a struct; its fields are C text."""
        text = ", ".join(map(str, fields))
        key = (kind, text.encode())
        if key not in self._names:
            self._names[key] = f"s{len(self._names)}"
            self.definitions.append(f"static const {kind} {self._names[key]} = {{{text}}};")
        return self._names[key]

    def _integers(self, kind: str, values: Any, dtype: Any) -> str:
        given = np.asarray(values).reshape(-1)
        flat = given.astype(dtype)
        assert np.array_equal(flat, given), f"numbers that do not fit in {kind}"
        return self._add(kind, "n", flat, lambda: [str(v) for v in flat.tolist()])

    def _add(self, kind: str, letter: str, flat: Any, items: Callable[[], list[str]]) -> str:
        key = (kind, flat.tobytes())
        if key not in self._names:
            self._names[key] = name = f"{letter}{len(self._names)}"
            self.bytes += flat.nbytes
            self.definitions.append(f"static const {kind} {name}[{len(flat)}] = {{\n{_wrapped(items())}}};")
        return self._names[key]


def _wrapped(items: list[str], per_line: int = 8) -> str:
    lines = (items[i : i + per_line] for i in range(0, len(items), per_line))
    return "".join(f"    {', '.join(line)},\n" for line in lines)
