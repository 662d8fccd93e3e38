"""The examples in the docstrings of `pdecnn.reference` and `pdecnn.testing` run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import pdecnn.reference
import pdecnn.testing


def modules(package):
    return [package.__name__] + [f"{package.__name__}.{m.name}" for m in pkgutil.iter_modules(package.__path__)]


@pytest.mark.parametrize("name", modules(pdecnn.reference) + modules(pdecnn.testing))
def test_examples_run(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


def test_the_definition_of_the_solver_has_an_example():
    module = importlib.import_module("pdecnn.reference.advection_diffusion")
    assert any(test.examples for test in doctest.DocTestFinder().find(module))
