"""The helpers of the other tests that the long campaigns use, too."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / room) for room in ("training", "shared")]
