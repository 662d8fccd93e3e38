"""Memory that stays with the process: what the C library gets back, it keeps for the next feature map.

By default glibc takes each large block from the system and gives it back when it is freed. A training step frees all
its feature maps, so that the next one waits for thousands of page faults, each of which clears a page.
"""

import ctypes
import os

SWITCH = "PDECNN_ALLOCATOR"
WORDS = ("keep", "system")
_OWN = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
# of malloc.h: no block of its own from the system, nothing given back, and room for 64 MB more at each request
_OPTIONS = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, -1), "M_TOP_PAD": (-2, 64 << 20)}


def keep_memory() -> bool:
    """Tells the C library to keep freed memory, for this process and from now on; answers whether it does.

    `pdecnn train`, `distill`, `condense` and `sweep` do this. A program of your own may, before it trains: the process
    then stays as large as it once was. Nothing is done where the C library is not glibc, where the environment has
    settings of malloc's own (`MALLOC_TRIM_THRESHOLD_` and such), and with `PDECNN_ALLOCATOR=system`.

    Example:
        >>> keep_memory() in (True, False)
        True
    """
    word = os.environ.get(SWITCH, "keep")
    if word not in WORDS:
        raise ValueError(f"keep_memory: {SWITCH} must be one of {', '.join(WORDS)}, got {word!r}. Unset it for keep.")
    if word == "system" or any(name in os.environ for name in _OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.values())
