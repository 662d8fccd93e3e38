"""The mathematics in plain torch. Each function is the definition that its fast twin in `kernels` is tested by."""

from pdecnn.functional.advection_diffusion import advection_diffusion as advection_diffusion
from pdecnn.functional.advection_diffusion import advection_diffusion_1d as advection_diffusion_1d
from pdecnn.functional.advection_diffusion import advection_diffusion_3d as advection_diffusion_3d
from pdecnn.functional.boundary import Boundary as Boundary
