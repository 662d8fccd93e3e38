"""The groups of channel mixings that nonlinearities leave as symmetries, as small values.

An element is a matrix `T` of shape `(n, n)` that acts on the channels of every pixel: `u -> T u`. Each group is
described by what its elements obey, and the intersection of two groups obeys both:

======================  =========================  ==================  ===========
group                   one entry per row, column  positive entries    orthogonal
======================  =========================  ==================  ===========
`GL`                    no                         no                  no
`O`                     no                         no                  yes
`MONOMIAL`              yes                        no                  no
`POSITIVE_MONOMIAL`     yes                        yes                 no
`SIGNED_PERMUTATION`    yes                        no                  yes
`PERMUTATION`           yes                        yes                 yes
======================  =========================  ==================  ===========

`TRIVIAL` holds the identity alone.
"""

from enum import Enum

import torch
from torch import Tensor, nn

from pdecnn.symmetry import _extras


class Group(Enum):
    """A group of channel mixings. The value is `(monomial, positive, orthogonal, trivial)`.

    Example:
        >>> Group.O & Group.POSITIVE_MONOMIAL
        <Group.PERMUTATION: (True, True, True, False)>
    """

    GL = (False, False, False, False)
    O = (False, False, True, False)  # noqa: E741
    MONOMIAL = (True, False, False, False)
    POSITIVE_MONOMIAL = (True, True, False, False)
    SIGNED_PERMUTATION = (True, False, True, False)
    PERMUTATION = (True, True, True, False)
    TRIVIAL = (True, True, True, True)

    @property
    def monomial(self) -> bool:
        """Whether elements have one entry in every row and column."""
        return self.value[0]

    @property
    def positive(self) -> bool:
        """Whether these entries are positive."""
        return self.value[1]

    @property
    def orthogonal(self) -> bool:
        """Whether elements are orthogonal matrices."""
        return self.value[2]

    def __and__(self, other: "Group") -> "Group":
        """The intersection."""
        return Group(tuple(a or b for a, b in zip(self.value, other.value, strict=True)))

    def __le__(self, other: "Group") -> bool:
        """Whether this is a subgroup of `other`."""
        return (self & other) is self

    def label(self, n: int) -> str:
        """The usual name, such as `O(128)`."""
        return LABELS[self].format(n=n)

    def dimension(self, n: int) -> int:
        """The dimension of the group as a manifold: the number of continuous parameters."""
        return {Group.GL: n * n, Group.O: n * (n - 1) // 2, Group.MONOMIAL: n, Group.POSITIVE_MONOMIAL: n}.get(self, 0)

    def generic_zeros(self, n: int) -> int:
        """How many entries of generic matrices an element can set to zero: scalings create none."""
        return {Group.GL: n * n - n, Group.O: n * (n - 1) // 2}.get(self, 0)

    def violation(self, T: Tensor, tol: float = 1e-8) -> str | None:
        """Why `T` is not in the group (up to `tol`), or None if it is."""
        if T.ndim != 2 or T.shape[0] != T.shape[1]:
            return f"its shape {tuple(T.shape)} is not square"
        if not T.isfinite().all():
            return "it has entries that are not finite"
        n, T = T.shape[0], T.double()
        if self is Group.TRIVIAL:
            distance = (T - torch.eye(n, dtype=T.dtype)).abs().max().item()
            return f"it differs from the identity by {distance:.1e}" if distance > tol else None
        if self.orthogonal:
            distance = (T.mT @ T - torch.eye(n, dtype=T.dtype)).abs().max().item()
            if distance > tol:
                return f"T^T T differs from the identity by {distance:.1e}"
        if self.monomial:
            entries = T.abs() > tol
            if not ((entries.sum(0) == 1).all() and (entries.sum(1) == 1).all()):
                return "it has rows or columns with more than one entry"
            if self.positive and T.min() < -tol:
                return f"it has a negative entry, {T.min().item():.3g}"
        elif not self.orthogonal:
            smallest = torch.linalg.svdvals(T).min().item()
            if smallest <= tol:
                return f"it is singular: its smallest singular value is {smallest:.1e}"
        return None

    def contains(self, T: Tensor, tol: float = 1e-8) -> bool:
        """Whether `T` is in the group up to `tol`."""
        return self.violation(T, tol) is None

    def sample(self, n: int, generator: torch.Generator | None = None, spread: float = 1.0) -> Tensor:
        """A random element `(n, n)` in float64; scales and singular values lie in `[e^-spread, e^spread]`."""

        def scales() -> Tensor:
            return ((2 * torch.rand(n, generator=generator, dtype=torch.float64) - 1) * spread).exp()

        if self is Group.TRIVIAL:
            return torch.eye(n, dtype=torch.float64)
        if self.monomial:
            T = torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=generator)]
            if not self.orthogonal:
                T = T * scales().unsqueeze(1)
            if not self.positive:
                T = T * (2.0 * torch.randint(2, (n, 1), generator=generator) - 1.0)
            return T
        Q = _random_orthogonal(n, generator)
        return Q if self.orthogonal else torch.mm(torch.mul(Q, scales()), _random_orthogonal(n, generator))

    def project(self, M: Tensor) -> Tensor:
        """The element nearest to `M` in the Frobenius norm (a singular `M` in GL is moved off the singular set)."""
        M = M.double()
        n = M.shape[0]
        if self is Group.TRIVIAL:
            return torch.eye(n, dtype=M.dtype)
        if not self.monomial:
            U, S, Vh = torch.linalg.svd(M)
            S = torch.ones_like(S) if self.orthogonal else S.clamp_min(1e-6 * max(S.max().item(), 1.0))
            return torch.mm(U * S, Vh)
        usable = M.clamp_min(0.0) if self.positive else M
        if self.orthogonal:  # |M - P|^2 falls with the entry that P selects
            src = _extras.assignment(M if self.positive else M.abs())
            entries = torch.ones(n, dtype=M.dtype) if self.positive else torch.where(M[range(n), src] < 0, -1.0, 1.0)
        else:  # ... and here with its square, as the entry is matched exactly
            src = _extras.assignment(usable.square())
            entries = usable[range(n), src]
            entries = torch.where(entries.abs() < 1e-6, 1e-6, entries)
        T = torch.zeros_like(M)
        T[range(n), src] = entries.to(M.dtype)
        return T

    def parametrise(self, start: Tensor) -> nn.Module:
        """A module whose `weight` is a group element, free for gradient descent, and equal to `start` at first.

        `O` uses torch's `orthogonal` (exponential map), `GL` geotorch's `invertible` (its component of `start`), the
        monomial groups positive scalings of `start`. The finite groups have nothing to descend.
        """
        problem = self.violation(start, 1e-6)
        if problem is not None:
            raise ValueError(f"Group.parametrise: start is not in {self.label(start.shape[0])}: {problem}.")
        if self.dimension(start.shape[0]) == 0:
            raise ValueError(f"Group.parametrise: {self.label(start.shape[0])} is finite; use sample or project.")
        if self is Group.O:
            return _extras.orthogonal_parameter(start)
        if self is Group.GL:
            return _extras.invertible_parameter(start)
        return _extras.ScaledParameter(start)


LABELS = {
    Group.GL: "GL({n})",
    Group.O: "O({n})",
    Group.MONOMIAL: "monomial({n})",
    Group.POSITIVE_MONOMIAL: "positive monomial({n})",
    Group.SIGNED_PERMUTATION: "signed permutations({n})",
    Group.PERMUTATION: "permutations({n})",
    Group.TRIVIAL: "identity({n})",
}


def _random_orthogonal(n: int, generator: torch.Generator | None) -> Tensor:
    Q, R = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    return torch.mul(Q, R.diagonal().sign())  # the signs make it uniform (Haar)
