"""How `functional` is fast: one folder per operator. Private; importing it registers what this machine has."""

from pdecnn.kernels.registry import available, register_all

__all__ = ["available"]

register_all()
