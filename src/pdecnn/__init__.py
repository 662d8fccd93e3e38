"""Compact convolutional networks from partial differential equations."""

from importlib.metadata import version as _version

from pdecnn import functional as functional

__version__ = _version("pdecnn")
