"""The operator `pdecnn::shared_expand` and its kernels."""
