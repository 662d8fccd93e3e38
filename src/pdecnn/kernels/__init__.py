"""Fast twins of `functional`: same names, same signatures, the fastest kernel of this machine."""

from pdecnn.kernels.advection_diffusion import advection_diffusion as advection_diffusion
from pdecnn.kernels.advection_diffusion import advection_diffusion_1d as advection_diffusion_1d
from pdecnn.kernels.advection_diffusion import advection_diffusion_3d as advection_diffusion_3d
from pdecnn.kernels.depthwise import depthwise as depthwise
from pdecnn.kernels.depthwise import depthwise_adjoint as depthwise_adjoint
from pdecnn.kernels.depthwise import diffusion as diffusion
from pdecnn.kernels.depthwise import explicit_diffusion as explicit_diffusion
from pdecnn.kernels.depthwise import linear_mix as linear_mix
from pdecnn.kernels.depthwise import linear_mix_adjoint as linear_mix_adjoint
from pdecnn.kernels.registry import available as available
from pdecnn.kernels.registry import register_all as _register_all
from pdecnn.kernels.spectral_filter import circulant_filter as circulant_filter
from pdecnn.kernels.spectral_filter import implicit_diffusion as implicit_diffusion
from pdecnn.kernels.spectral_filter import implicit_factors as implicit_factors
from pdecnn.kernels.spectral_filter import spectral_filter as spectral_filter
from pdecnn.kernels.spectral_filter import symbol as symbol

_register_all()
