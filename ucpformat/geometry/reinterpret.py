"""View and permute: which dims of which view of the logical tensor the dims to split are made of (SPEC 13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ucpformat.errors import error
from ucpformat.geometry.refine import common_refinement, grouped
from ucpformat.geometry.steps import Permute, View

__all__ = ["Reinterpretation", "reinterpret"]

# A run of elements of the row-major order: how many, and how far apart; one digit of a mixed-radix index.
_Factor = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Reinterpretation:
    """What the steps that split see: ``extents``, where dim ``d`` is made of dims ``dims[d]`` of ``view``.

    The outermost comes first, and dims of extent 1 may be left out. ``view`` refines the logical shape
    wherever the two have a common refinement.
    """

    extents: tuple[int, ...]
    view: tuple[int, ...]
    dims: tuple[tuple[int, ...], ...]

    @property
    def is_plain(self) -> bool:
        """Whether the view changes nothing."""
        return self.dims == tuple((dim,) for dim in range(len(self.view)))


def reinterpret(shape: tuple[int, ...], steps: Sequence[tuple[View | Permute, str]]) -> Reinterpretation:
    """Apply views and permutations, each with its pointer, to a logical tensor of ``shape``.

    Raises UCP-E-LAYOUT where a view has another element count or cuts across dims that a permutation has
    taken apart, and where a permutation has another number of dims.
    """
    plain = Reinterpretation(shape, shape, tuple((dim,) for dim in range(len(shape))))
    if not steps:
        return plain
    extents = shape
    inner = math.prod(shape)
    factors: list[list[_Factor]] = []
    for extent in shape:
        inner //= extent or 1
        factors.append([(extent, inner)] if extent > 1 else [])
    for step, at in steps:
        if isinstance(step, Permute):
            if len(step.order) != len(extents):
                raise error("UCP-E-LAYOUT", f"the tensor has {len(extents)} dims here", at=f"{at}/order")
            extents = tuple(extents[dim] for dim in step.order)
            factors = [factors[dim] for dim in step.order]
            continue
        if math.prod(step.shape) != math.prod(extents):
            raise error(
                "UCP-E-LAYOUT",
                f"a tensor of shape {extents} has no view of shape {step.shape}: element counts differ",
                at=f"{at}/shape",
            )
        extents = step.shape
        digits = [factor for group in factors for factor in group]
        # Of an empty tensor no element is anywhere, and every view with as many dims does.
        factors = [[] for _ in extents] if 0 in shape else _regrouped(digits, extents, f"{at}/shape")
    if 0 in shape:
        return Reinterpretation(extents, shape, tuple(() for _ in extents))
    ordered = sorted((factor for group in factors for factor in group), key=lambda factor: -factor[1])
    radix = tuple(extent for extent, _ in ordered)
    view = common_refinement(shape, radix)
    view = radix if view is None else view
    parts = dict(zip(ordered, grouped(view, radix), strict=True))
    dims = tuple(tuple(dim for factor in group for dim in parts[factor]) for group in factors)
    return Reinterpretation(extents, view, dims)


def _regrouped(factors: list[_Factor], shape: tuple[int, ...], at: str) -> list[list[_Factor]]:
    """Read the digits as those of ``shape``: neighbours that are one digit are joined, then split anew."""
    waiting: list[_Factor] = []
    for extent, inner in factors:
        if waiting and waiting[-1][1] == inner * extent:
            waiting[-1] = (waiting[-1][0] * extent, inner)
        else:
            waiting.append((extent, inner))
    waiting.reverse()
    groups: list[list[_Factor]] = []
    for wanted in shape:
        group: list[_Factor] = []
        missing = wanted
        while missing > 1:
            extent, inner = waiting.pop()
            if missing % extent == 0:
                group.append((extent, inner))
                missing //= extent
            elif extent % missing == 0:
                group.append((missing, inner * (extent // missing)))
                waiting.append((extent // missing, inner))
                missing = 1
            else:
                raise error(
                    "UCP-E-LAYOUT",
                    f"the extent {wanted} cuts across dims that an earlier permutation has taken apart",
                    at=at,
                )
        groups.append(group)
    return groups
