"""The model zoo, registered in timm: one family per file. `import pdecnn` is enough to create them by name."""

from pdecnn.models import cifar_wrn as cifar_wrn
from pdecnn.models import described as described
from pdecnn.models import fashion_resnet as fashion_resnet
from pdecnn.models.cifar_darts import CifarDarts
from pdecnn.models.cifar_densenet import CifarDenseNet
from pdecnn.models.cifar_resnet import CifarResNet
from pdecnn.models.hyperbolic import HyperbolicConfig, HyperbolicNet
from pdecnn.models.lowcost import LowCostConfig, LowCostNet
from pdecnn.models.mdeq import CifarMDEQ
from pdecnn.models.mnist import MnistNet, MnistToy
from pdecnn.models.mnist_micro import MnistMicro
from pdecnn.models.mobile_global import EfficientNetGlobal, MobileNetV3Global
from pdecnn.models.neupde import CifarNeuPDE
from pdecnn.models.odenet import CifarODENet, MnistODENet
from pdecnn.models.ruthotto_haber import CifarPDENet
from pdecnn.models.wave import WaveNet

__all__ = [
    "CifarDarts",
    "CifarDenseNet",
    "CifarMDEQ",
    "CifarNeuPDE",
    "CifarODENet",
    "CifarPDENet",
    "CifarResNet",
    "EfficientNetGlobal",
    "HyperbolicConfig",
    "HyperbolicNet",
    "LowCostConfig",
    "LowCostNet",
    "MnistMicro",
    "MnistNet",
    "MnistODENet",
    "MnistToy",
    "MobileNetV3Global",
    "WaveNet",
]
