"""The wave equation as a residual network: blocks that carry a state and its velocity, and keep their energy."""

import math

import torch
from torch import nn

from pdecnn.layers import VariableConv2d, WaveStep

K, DT, SIDE, MODE = 100, 0.25, 32, 2


def network() -> nn.Sequential:
    laplacian = VariableConv2d.laplacian(1, boundary="periodic")
    return nn.Sequential(*[WaveStep(laplacian, dt=DT) for _ in range(K)])


def main() -> None:
    wave = torch.cos(2 * math.pi * MODE * torch.arange(SIDE) / SIDE).expand(1, 1, SIDE, SIDE).double()
    with torch.no_grad():
        u = network().double()(torch.cat([wave, torch.zeros_like(wave)], 1))[:, :1]
    omega = 2 * math.asin(DT * math.sin(math.pi * MODE / SIDE)) / DT
    predicted = math.cos(omega * DT * K) - DT / 2 * omega * math.sin(omega * DT * K)
    amplitude = (u / wave)[..., 0].mean().item()
    print(f"amplitude after {K} blocks: {amplitude:.4f}; a standing wave of frequency {omega:.4f} has {predicted:.4f}")


if __name__ == "__main__":
    main()
