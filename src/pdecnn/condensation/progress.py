"""Planning shows itself as all other work does."""

from pdecnn.shared.progress import ProgressCallback as ProgressCallback
from pdecnn.shared.progress import begin as begin
