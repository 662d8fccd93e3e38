"""Export to edge runtimes. Every exported file is loaded, run and compared with the model.

The package is itself callable under its own name: `pdecnn.export(model, path, example_inputs)`.
"""

from pdecnn.deploy.api import ExportReport as ExportReport
from pdecnn.deploy.api import export as export
from pdecnn.deploy.api import session as session
from pdecnn.deploy.check import Agreement as Agreement
from pdecnn.deploy.check import ExportError as ExportError
from pdecnn.deploy.lower import lower as lower
from pdecnn.deploy.ode import fix_steps as fix_steps
