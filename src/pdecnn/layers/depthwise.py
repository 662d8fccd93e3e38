"""The depth-wise convolution by our own kernel, whose backward pass is several times faster than torch's on the CPU."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pdecnn.functional import depthwise
from pdecnn.layers.coefficients import LearnedPair
from pdecnn.reference.boundary import Boundary


class DepthwiseConv2d(nn.Module):
    """One stencil per channel: `nn.Conv2d(C, C, m, padding=m // 2, groups=C, bias=False)`.

    Args:
        channels: Number of channels C.
        kernel_size: Odd size m of the stencils.
        bias: Whether to add a number per channel.
        boundary: What lies beyond the border: zeros (`"dirichlet"`), or see `Boundary`.
        device: Where the parameters live.
        dtype: Type of the parameters.

    Example:
        >>> layer = DepthwiseConv2d(4)
        >>> y = torch.randn(1, 4, 6, 6)
        >>> conv = nn.functional.conv2d(y, layer.stencil[:, None], padding=1, groups=4)
        >>> torch.allclose(layer(y), conv, atol=1e-6)
        True
    """

    def __init__(
        self,
        channels: int,
        kernel_size: int = 3,
        *,
        bias: bool = False,
        boundary: str | Boundary = "dirichlet",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f"DepthwiseConv2d: kernel_size must be odd and positive, got {kernel_size}.")
        self.channels, self.kernel_size = channels, kernel_size
        self.boundary = Boundary.parse(boundary, "DepthwiseConv2d")
        self.stencil = nn.Parameter(torch.empty(channels, kernel_size, kernel_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform by fan-in, as `nn.Conv2d`; a bias starts at zero."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        nn.init.uniform_(self.stencil, -1 / self.kernel_size, 1 / self.kernel_size)

    def forward(self, y: Tensor) -> Tensor:
        """`K y` (plus the bias)."""
        out = depthwise(y, self.stencil, self.boundary)
        return out if self.bias is None else out + self.bias[:, None, None]

    def extra_repr(self) -> str:
        """The arguments."""
        bias = self.bias is not None
        return f"{self.channels}, kernel_size={self.kernel_size}, bias={bias}, boundary={self.boundary.value!r}"


class _Native(nn.Conv2d):
    """A depth-wise `nn.Conv2d` that our kernel computes: a class that `use_native` gives to a module and takes away."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if input.ndim != 4:  # a single image
            alone: Tensor = super()._conv_forward(input, weight, bias)
            return alone
        out = depthwise(input, weight[:, 0], "dirichlet")
        return out if bias is None else out + bias.to(out.dtype)[:, None, None]


def depthwise_convs(model: nn.Module) -> Iterator[nn.Conv2d]:
    """The convolutions of a model that our kernel can compute: one odd stencil per channel, of stride 1.

    Those that make the coefficients of a Global layer have an operator of their own.
    """
    taken = {part for pair in model.modules() if isinstance(pair, LearnedPair) for part in pair.modules()}
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        plain = type(conv) in (nn.Conv2d, _Native)  # a subclass may compute otherwise
        if plain and conv not in taken and _is_covered(conv):
            yield conv


def _is_covered(conv: nn.Conv2d) -> bool:
    return (
        conv.groups == conv.in_channels == conv.out_channels > 1
        and all(side % 2 for side in conv.kernel_size)
        and conv.padding == tuple(side // 2 for side in conv.kernel_size)
        and conv.padding_mode == "zeros"
        and conv.stride == conv.dilation == (1, 1)
        and "_conv_forward" not in vars(conv)
    )


def use_native(model: nn.Module, *, wanted: bool = True) -> nn.Module:
    """Lets our kernel compute the depth-wise convolutions of a model, in place, or gives them back to torch.

    Parameters, buffers and their names stay.

    Example:
        >>> conv = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        >>> x = torch.randn(1, 4, 6, 6)
        >>> torch.allclose(conv(x), use_native(conv)(x), atol=1e-6)
        True
    """
    for conv in list(depthwise_convs(model)):
        conv.__class__ = _Native if wanted else nn.Conv2d
    return model
