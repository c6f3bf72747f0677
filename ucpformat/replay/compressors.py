"""Compressors of gradients: what they leave is what the optimizer gets, and what a log has."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ucpformat.errors import error

__all__ = ["GradientCompressor", "TopK", "compress", "residuals_of"]


class GradientCompressor(Protocol):
    """Changes a gradient in place before the optimizer's step: `UpdateLog` calls it once for each gradient and step.

    One with error feedback has ``residuals``, a dict: `UpdateLog` fills it with a tensor of zeros for each parameter,
    by its name, adds that to the gradient before it calls `compress`, and keeps in it what this has taken away.
    """

    def compress(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Change a local gradient in place.

        Returns:
            The places of all elements that are not zero, 1-D and ascending, in row-major order; None where the log is
            to look for them.
        """
        ...


class TopK:
    """Keeps the elements of a gradient that are greatest by magnitude, a ``density`` of them, and makes the rest zero.

    This changes training. With ``error_feedback`` the rest is kept in ``residuals``, by parameter, and `UpdateLog` adds
    it to the gradient of the next step; without, it is dropped.

    >>> gradient = torch.tensor([0.1, -3.0, 0.2, 1.0])
    >>> ucp.TopK(0.5).compress(gradient).tolist(), gradient.tolist()
    ([1, 3], [0.0, -3.0, 0.0, 1.0])
    """

    def __init__(self, density: float, *, error_feedback: bool = False) -> None:
        if isinstance(density, bool) or not (isinstance(density, int | float) and 0 < density <= 1):
            raise error("UCP-E-MISMATCH", f"a density lies in (0, 1], not {density!r}", at="density")
        if error_feedback not in (True, False):
            message = f"error_feedback= is True or False, not {error_feedback!r}"
            raise error("UCP-E-MISMATCH", message, at="error_feedback")
        self.density = density
        self.residuals: dict[str, Any] | None = {} if error_feedback else None

    def compress(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Make all elements zero but those that are kept; returns the places of these.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for a gradient that is not contiguous: it is changed in place.

        >>> ucp.TopK(0.01).compress(torch.ones(200)).numel()
        2
        """
        if not gradient.is_contiguous():
            message = (
                "a gradient that is not contiguous cannot be compressed in place; give a contiguous() one"
            )
            raise error("UCP-E-MISMATCH", message)
        flat = gradient.view(-1)
        count = max(1, int(self.density * flat.numel())) if flat.numel() else 0
        places = torch.topk(flat.abs(), count, sorted=False).indices.sort().values
        kept = flat[places]
        flat.zero_()
        flat[places] = kept
        return places


def residuals_of(compressor: GradientCompressor | None) -> dict[str, Any] | None:
    """Return the residuals of a compressor by the names of parameters; None for one without error feedback."""
    return getattr(compressor, "residuals", None)


def compress(
    compressor: GradientCompressor, gradient: torch.Tensor, residual: torch.Tensor | None
) -> torch.Tensor | None:
    """Compress a local gradient in place, with the residual of earlier steps, which is then that of this one."""
    if residual is None:
        return compressor.compress(gradient)
    gradient.add_(residual)
    residual.copy_(gradient)
    places = compressor.compress(gradient)
    residual.sub_(gradient)
    return places
