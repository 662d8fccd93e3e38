"""Hints for mistyped names, and the paths of modules."""

from pdecnn.shared.names import child_path, close_to, is_within

KNOWN = ["cifar_resnet32", "cifar_resnet56", "vgg11"]


def test_the_nearest_come_first_and_no_more_than_asked_for():
    assert close_to("cifar_resnet33", KNOWN) == " Close: 'cifar_resnet32', 'cifar_resnet56'."
    assert close_to("cifar_resnet33", KNOWN, n=1) == " Close: 'cifar_resnet32'."


def test_nothing_is_said_where_nothing_is_close_enough():
    assert close_to("densenet", KNOWN) == ""
    assert close_to("resnet32", KNOWN, cutoff=0.9) == ""
    assert close_to("resnet32", KNOWN, cutoff=0.7) == " Close: 'cifar_resnet32'."
    assert close_to(None, []) == ""


def test_paths_of_modules():
    assert child_path("", "stem") == "stem"
    assert child_path("stem", "0") == "stem.0"
    assert is_within("a.b", "a")
    assert is_within("a", "a")
    assert is_within("a", "")
    assert not is_within("a", "a.b")
    assert not is_within("ab.c", "a")
