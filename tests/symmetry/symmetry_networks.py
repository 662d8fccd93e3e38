"""Small hyperbolic networks for the tests of the symmetry: two stages of 8 and 12 channels, five blocks."""

import torch
from torch import nn

from pdecnn.models import HyperbolicConfig, HyperbolicNet
from pdecnn.symmetry import fold_norms, random_transforms, transform
from pdecnn.symmetry.matrices import stream_matrices


def network(equation="cp", activation="softball", *, linear_stem=True, seed=0, **options):
    """In float64 and inference mode, with random statistics in all norms."""
    torch.manual_seed(seed)
    widths = (8, 16) if equation == "eq5" else (8, 12)
    f = {"cp": 1}.get(equation, 4)
    cfg = HyperbolicConfig(
        equation,
        widths,
        (2, 3),
        f=f,
        activation=activation,
        stem_kernel=3,
        stem_stride=options.pop("stem_stride", 1),
        linear_stem=linear_stem,
        **options,
    )
    net = HyperbolicNet(cfg, num_classes=5, dtype=torch.float64, zero_init_last=False)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.normal_(1, 0.2)
            module.bias.data.normal_(0, 0.3)
    return net.eval()


def images(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, 8, 8, generator=generator, dtype=torch.float64)


def planted(seed=0, zeros=0.718):
    """A network with that share of zeros in its stream matrices, and the same one in random bases."""
    net = fold_norms(network(seed=seed))
    generator = torch.Generator().manual_seed(seed + 100)
    for m in stream_matrices(net):
        m.layer.weight.data *= torch.rand(m.layer.weight.shape, generator=generator) > zeros
    return net, transform(net, random_transforms(net, generator))
