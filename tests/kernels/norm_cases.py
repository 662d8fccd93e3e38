"""Activations by their names in the operators, where these have kinks, and numbers: for the tests of norms."""

import torch
from torch import nn

ACTS = {
    "identity": nn.Identity(),
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "tanh": nn.Tanh(),
    "hardtanh": nn.Hardtanh(),
}
KINKS = {"relu": (0.0,), "relu6": (0.0, 6.0), "hardtanh": (-1.0, 1.0)}
FORMATS = (torch.contiguous_format, torch.channels_last)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
