"""Examples may add to the table of replacements; the tests after them start from the table of the package."""

import pytest

from pdecnn.condensation import replacements


@pytest.fixture(autouse=True)
def the_table_of_the_package():
    before = dict(replacements._BUILDS)
    yield
    replacements._BUILDS.clear()
    replacements._BUILDS.update(before)
