"""The text of a file with a network of a user's own: for the tests of the command line and of the page about it."""

NETWORK = """
from torch import nn

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        first, second = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.body = nn.Sequential(first, nn.BatchNorm2d(c), nn.ReLU(), second)

    def forward(self, x):
        return nn.functional.relu(x + self.body(x))

def make(num_classes=CLASSES):
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Sequential(*(Block(8) for _ in range(4))), *head)
"""


def network(classes):
    """With so many classes unless others are asked for."""
    return NETWORK.replace("CLASSES", str(classes))
