"""Export to edge runtimes. Every exported file is loaded, run and compared with the model.

The package is itself callable under its own name: `pdecnn.export(model, path, example_inputs)`.
"""

from pdecnn.export.api import ExportReport as ExportReport
from pdecnn.export.api import export as export
from pdecnn.export.api import session as session
from pdecnn.export.check import Agreement as Agreement
from pdecnn.export.check import ExportError as ExportError
from pdecnn.export.lower import lower as lower
from pdecnn.export.ode import fix_steps as fix_steps
