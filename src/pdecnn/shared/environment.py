"""What the machine and its environment variables say."""

import os
import platform
from pathlib import Path


def data_folder(given: str | Path | None = None) -> Path:
    """Where datasets are: the folder that was given, else the environment variable `PDECNN_DATA`, else `data`."""
    return Path(given or os.environ.get("PDECNN_DATA") or "data")


def cores() -> int:
    """How many cores this process may use; those of the machine where the system does not tell."""
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return own or 1


def cpu_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
