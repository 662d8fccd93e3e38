"""Layers: modules that own parameters and call `kernels`; they have no numerics of their own."""
