"""The operator `pdecnn::advection_diffusion` and its kernels."""
