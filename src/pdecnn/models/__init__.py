"""The model zoo, registered in timm: one family per file. `import pdecnn` is enough to create them by name."""

from pdecnn.models.cifar_resnet import CifarResNet as CifarResNet
from pdecnn.models.hyperbolic import HyperbolicConfig as HyperbolicConfig
from pdecnn.models.hyperbolic import HyperbolicNet as HyperbolicNet
