"""The model zoo, registered in timm: one family per file. `import pdecnn` is enough to create them by name."""

from pdecnn.models import cifar_wrn as cifar_wrn
from pdecnn.models import fashion_resnet as fashion_resnet
from pdecnn.models.cifar_darts import CifarDarts as CifarDarts
from pdecnn.models.cifar_densenet import CifarDenseNet as CifarDenseNet
from pdecnn.models.cifar_resnet import CifarResNet as CifarResNet
from pdecnn.models.hyperbolic import HyperbolicConfig as HyperbolicConfig
from pdecnn.models.hyperbolic import HyperbolicNet as HyperbolicNet
from pdecnn.models.lowcost import LowCostConfig as LowCostConfig
from pdecnn.models.lowcost import LowCostNet as LowCostNet
from pdecnn.models.mdeq import CifarMDEQ as CifarMDEQ
from pdecnn.models.mnist import MnistNet as MnistNet
from pdecnn.models.mnist import MnistToy as MnistToy
from pdecnn.models.mobile_global import EfficientNetGlobal as EfficientNetGlobal
from pdecnn.models.mobile_global import MobileNetV3Global as MobileNetV3Global
from pdecnn.models.neupde import CifarNeuPDE as CifarNeuPDE
from pdecnn.models.odenet import CifarODENet as CifarODENet
from pdecnn.models.odenet import MnistODENet as MnistODENet
from pdecnn.models.ruthotto_haber import CifarPDENet as CifarPDENet
