"""K steps of advection-diffusion, fused."""

from pdecnn.functional.advection_diffusion import advection_diffusion as advection_diffusion
from pdecnn.functional.advection_diffusion import advection_diffusion_1d as advection_diffusion_1d
from pdecnn.functional.advection_diffusion import advection_diffusion_3d as advection_diffusion_3d
