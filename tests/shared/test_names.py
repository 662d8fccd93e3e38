"""Hints for mistyped names."""

from pdecnn.shared.names import close_to

KNOWN = ["cifar_resnet32", "cifar_resnet56", "vgg11"]


def test_the_nearest_come_first_and_no_more_than_asked_for():
    assert close_to("cifar_resnet33", KNOWN) == " Close: 'cifar_resnet32', 'cifar_resnet56'."
    assert close_to("cifar_resnet33", KNOWN, n=1) == " Close: 'cifar_resnet32'."


def test_nothing_is_said_where_nothing_is_close_enough():
    assert close_to("densenet", KNOWN) == ""
    assert close_to("resnet32", KNOWN, cutoff=0.9) == ""
    assert close_to("resnet32", KNOWN, cutoff=0.7) == " Close: 'cifar_resnet32'."
    assert close_to(None, []) == ""
