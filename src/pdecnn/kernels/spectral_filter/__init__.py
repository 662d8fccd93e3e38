"""The operator `pdecnn::spectral_filter` and its kernels."""
