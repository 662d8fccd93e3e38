"""The C file in 8 bits: weights per output channel, values per tensor, PDE states in 16 bits, no float in between.

`calibrate` finds the ranges of all values on given samples, `quantise` decides what is computed in integers, the other
modules hold one integer form per operator: the C that it writes and the same in Python, bit by bit, which `exact` runs.
"""
