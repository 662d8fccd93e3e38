"""A whole Global layer in inference: one read, one write."""

from pdecnn.kernels.global_layer.op import ACTIVATIONS as ACTIVATIONS
