"""The mathematics in plain torch. Each function is the definition that its fast twin in `kernels` is tested by."""

from pdecnn.functional.advection_diffusion import advection_diffusion as advection_diffusion
from pdecnn.functional.advection_diffusion import advection_diffusion_1d as advection_diffusion_1d
from pdecnn.functional.advection_diffusion import advection_diffusion_3d as advection_diffusion_3d
from pdecnn.functional.ball import hardball as hardball
from pdecnn.functional.ball import softball as softball
from pdecnn.functional.boundary import Boundary as Boundary
from pdecnn.functional.shared_stencils import shared_expand as shared_expand
from pdecnn.functional.shared_stencils import shared_expand_moments as shared_expand_moments
from pdecnn.functional.shared_stencils import shared_expand_product as shared_expand_product
from pdecnn.functional.variable_conv import variable_conv2d as variable_conv2d
