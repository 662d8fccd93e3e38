"""Which way of filtering is the fastest at a size, from a table measured by `benchmarks/lowcost.py --calibrate`."""

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

NATIVE = "native"


@cache
def table() -> dict[int, dict[str, float]]:
    """Milliseconds of forward and backward of each method, by the side of a square grid."""
    text = files("pdecnn.kernels.spectral_filter").joinpath("times.json").read_text()
    return {int(n): times for n, times in json.loads(text)["milliseconds"].items()}


@cache
def _fastest(side: int, native: bool) -> str:
    rows = table()
    nearest = min(rows, key=lambda n: (abs(n - side), n))
    times = {method: ms for method, ms in rows[nearest].items() if native or method != NATIVE}
    return min(times, key=lambda method: times[method])


def fastest(size: Sequence[int], *, native: bool) -> str:
    """`"fft"`, `"hartley"`, `"dense"` or, where the native library is loaded, `"native"`.

    Volumes use the FFT, and signals too unless a native kernel takes them.
    """
    if len(size) > 2 or (len(size) == 1 and not native):
        return "fft"
    H, W = (size[0], size[0]) if len(size) == 1 else size
    return _fastest(round((H + W) / 2), native)  # the cost of matrix products goes with H + W
