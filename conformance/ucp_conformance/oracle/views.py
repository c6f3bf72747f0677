"""The view of a layout, in which pieces are boxes (SPEC 13), from the digits of the row-major index."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ucp_conformance.oracle.layout_rules import wrong

__all__ = ["view_of"]

Digit = tuple[int, int]


def view_of(steps: Sequence[Mapping[str, Any]], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the view of the logical tensor in which pieces are listed (section 13), from the digits of its index."""
    logical = tuple(shape)
    count = math.prod(logical)
    weights = [math.prod(logical[dim + 1 :]) for dim in range(len(logical))]
    dims: list[list[Digit]] = [[(e, w)] if e != 1 else [] for e, w in zip(logical, weights, strict=True)]
    changed = False
    for step in steps:
        if step["kind"] == "permute":
            if len(step["order"]) != len(dims):
                raise wrong("the order does not name every dimension once")
            dims = [dims[dim] for dim in step["order"]]
            changed = True
        elif step["kind"] == "view":
            if math.prod(step["shape"]) != count:
                raise wrong("a view with another number of elements")
            dims = _regrouped(dims, step["shape"]) if count else [[] for _ in step["shape"]]
            changed = True
    if not changed or count == 0:
        return logical
    digits = sorted((digit for dim in dims for digit in dim), key=lambda digit: -digit[1])
    marks = sorted({w for _, w in digits if w > 1} | {w for w in weights if 1 < w < count})
    if any(b % a for a, b in pairwise(marks)):
        return tuple(radix for radix, _ in digits)
    view: list[int] = []
    for extent, weight in zip(logical, weights, strict=True):
        inside = [mark for mark in marks if weight < mark < weight * extent]
        edges = [weight, *inside, weight * extent]
        view += [high // low for low, high in reversed(list(pairwise(edges)))]
    return tuple(view)


def _regrouped(dims: Sequence[Sequence[Digit]], shape: Sequence[int]) -> list[list[Digit]]:
    """Apply rule 3: the digits in order, neighbours joined, taken by the extents of the new shape."""
    rest: list[Digit] = []
    for radix, weight in (digit for dim in dims for digit in dim):
        if rest and rest[-1][1] == weight * radix:
            rest[-1] = rest[-1][0] * radix, weight
        else:
            rest.append((radix, weight))
    found: list[list[Digit]] = []
    for lacking in shape:
        taken: list[Digit] = []
        while lacking > 1:
            radix, weight = rest.pop(0)
            if lacking % radix == 0:
                taken.append((radix, weight))
                lacking //= radix
            elif radix % lacking == 0:
                taken.append((lacking, weight * radix // lacking))
                rest.insert(0, (radix // lacking, weight))
                lacking = 1
            else:
                raise wrong("a view whose extents do not fit")
        found.append(taken)
    return found
