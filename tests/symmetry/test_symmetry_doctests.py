"""The examples in the docstrings of the symmetry toolkit and of the hyperbolic layers run and print what they say."""

import doctest
import importlib

import pytest

MODULES = [
    *(f"pdecnn.symmetry.{name}" for name in ("groups", "streams", "transform", "align", "gauge", "lifting")),
    *(f"pdecnn.layers.{name}" for name in ("ball", "shared_expand", "variable_conv", "cp_block")),
    "pdecnn.models.hyperbolic",
    "pdecnn.training.variation",
    "pdecnn.training.diverged",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
    failed, tried = doctest.testmod(importlib.import_module(name), optionflags=flags)
    assert failed == 0
    assert tried > 0
