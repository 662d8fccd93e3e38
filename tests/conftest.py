"""What all tests share: each starts from the same seed, whichever ran before it in this process."""

import torch


def pytest_runtest_setup() -> None:
    torch.manual_seed(0)
