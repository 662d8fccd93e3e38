"""The operator `pdecnn::depthwise` and its kernels."""
