"""The heat equation as a residual network: ten blocks whose branch is the Laplacian, and what they do to a wave."""

import math

import torch
from torch import nn

from pdecnn.layers import EulerStep, VariableConv2d

K, DT, SIDE, MODE = 10, 0.2, 32, 3


def network() -> nn.Sequential:
    laplacian = VariableConv2d.laplacian(1, boundary="periodic")
    return nn.Sequential(*[EulerStep(laplacian, dt=DT) for _ in range(K)])


def main() -> None:
    wave = torch.cos(2 * math.pi * MODE * torch.arange(SIDE) / SIDE).expand(1, 1, SIDE, SIDE)
    with torch.no_grad():
        decay = (network()(wave) / wave)[..., 0].mean().item()
    eigenvalue = -4 * math.sin(math.pi * MODE / SIDE) ** 2
    print(f"decay of mode {MODE} in {K} blocks: {decay:.6f}; forward Euler predicts {(1 + DT * eigenvalue) ** K:.6f}, "
          f"the heat equation {math.exp(K * DT * eigenvalue):.6f}")  # fmt: skip


if __name__ == "__main__":
    main()
