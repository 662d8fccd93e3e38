"""Blocks that need special care: how a user tells `condense` what replaces a run of them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from torch import nn

from pdecnn.condensation.site import Run

Replacement = Callable[[Sequence[nn.Module], Run], nn.Module]
F = TypeVar("F", bound=Replacement)

_REPLACEMENTS: dict[type[nn.Module], Replacement] = {}


def register_block(block: type[nn.Module]) -> Callable[[F], F]:
    """Makes the decorated function build what replaces a run of `block`, instead of a Global layer.

    The function is given the removed blocks, copies with their trained weights, and the `Run`; it returns one module
    that takes and gives what the blocks do. It is used when a plan is applied, and so also when a condensed model is
    loaded: import the module that registers it first.

    Example:
        >>> class Block(nn.Sequential):
        ...     pass
        >>> @register_block(Block)
        ... def shortest(blocks, run):
        ...     return blocks[-1]  # the last block does the work of all
        >>> registered([Block()]) is shortest
        True
    """
    if not (isinstance(block, type) and issubclass(block, nn.Module)):
        raise TypeError(f"register_block: expected a class of modules, got {block!r}. Use @register_block(MyBlock).")

    def keep(function: F) -> F:
        _REPLACEMENTS[block] = function
        return function

    return keep


def registered(modules: Sequence[nn.Module]) -> Replacement | None:
    """The function registered for the class of these modules, if they are all of one that has one."""
    for kind in type(modules[0]).__mro__ if modules else ():
        if kind in _REPLACEMENTS and all(isinstance(m, kind) for m in modules):
            return _REPLACEMENTS[kind]
    return None
