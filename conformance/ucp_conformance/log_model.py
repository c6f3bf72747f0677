"""What a plan of an update log means: pieces, gradients, and the states that a job by `ucp.sgd` goes through."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ucp_conformance.oracle.bytes_of import ITEM_BYTES
from ucp_conformance.oracle.update_logs import indices

__all__ = ["RATES", "VALUES", "Given", "LogModel"]

_NUMBERS: Final = (0.0, -0.0, 1.0, -2.5, 0.1, 1e-45, 3e-39, -7e8, 123.456)
_RATES: Final[tuple[Any, ...]] = (0.5, 1, {"$float": "1.0"}, 0.1, {"$float": "-0.0"}, 3e-5)
_VALUES: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"cursor": 7},
    {"rng": {"$bytes": "AAEC"}, "é": {"$tuple": [1, {"$float": "2.0"}, None]}},
)
RATES: Final = len(_RATES)
VALUES: Final = len(_VALUES)


@dataclass(frozen=True)
class Given:
    """What a step has of a tensor: all elements, of which only those at ``places``, or of ``rows``, are told."""

    whole: bytes
    places: frozenset[int] | None = None
    rows: frozenset[int] | None = None


class LogModel:
    """The data of a plan, which follow from its seed."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        self.tensors: list[dict[str, Any]] = plan["tensors"]

    def item(self, tensor: int) -> int:
        """Return the bytes of an element."""
        return ITEM_BYTES[self.tensors[tensor]["dtype"]]

    def begin(self) -> dict[str, bytes]:
        """Return the values of atoms in state 0."""
        found = {one["atom"]: self._elements(n, f"begin/{n}") for n, one in enumerate(self.tensors)}
        # Residuals of a job that has just begun are zero.
        found |= {
            one["atom"]: bytes(len(found[one["atom"]])) for one in self.tensors if one["role"] == "residual"
        }
        return {**found, "frozen": struct.pack("<2f", 1.5, -2.5)}

    def shapes(self) -> dict[str, list[int]]:
        """Return the shapes of atoms; the last one is in no epoch."""
        return {one["atom"]: one["shape"] for one in self.tensors} | {"frozen": [2]}

    def dtypes(self) -> dict[str, str]:
        """Return the data types of atoms."""
        return {one["atom"]: one["dtype"] for one in self.tensors} | {"frozen": "float32"}

    def pieces(self, epoch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the pieces of an epoch: each tensor in parts along its first dimension, for the ranks in turn."""
        found: list[dict[str, Any]] = []
        for n, (tensor, parts) in enumerate(zip(self.tensors, epoch["parts"], strict=True)):
            shape = tensor["shape"]
            if 0 in shape:
                continue
            rows = shape[0] if shape else 1
            edges = sorted({rows * k // min(parts, rows) for k in range(min(parts, rows) + 1)})
            for low, high in itertools.pairwise(edges):
                rank = (epoch["first_rank"] + len(found)) % epoch["ranks"]
                inner = [0] * (len(shape) - 1)
                offset, size = ([low, *inner], [high - low, *shape[1:]]) if shape else ([], [])
                found.append({"tensor": n, "rank": rank, "offset": offset, "shape": size})
        return found

    def document(self, epoch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of an epoch document that do not depend on the log."""
        return {
            "ranks": epoch["ranks"],
            "tensors": self.tensors,
            "pieces": self.pieces(epoch),
            "groups": self.plan["groups"],
            "optimizer": {"type": self.plan["optimizer"], "profile": epoch["profile"]},
            "exactness": epoch["exactness"],
        }

    def options(self, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the options of a step, for each group."""
        more = {} if self.plan["optimizer"] == "ucp.sgd" else {"betas": {"$tuple": [0.9, 0.999]}}
        return [{"lr": _RATES[number], **more} for number in step["rates"]]

    def values(self, epoch: Mapping[str, Any], rank: int, stop: int) -> dict[str, Any]:
        """Return the own values of a rank in a state."""
        found = _VALUES[epoch["values"]]
        return {**found, "cursor": 100 * rank + stop} if found else {}

    def given(self, number: int, at: int, tensor: int) -> Given | None:
        """Return what a step of an epoch, counted from its first, has of a tensor; None where it has nothing."""
        form = self.plan["epochs"][number]["steps"][at]["forms"][tensor]
        name = f"{number}/{at}/{tensor}"
        shape = self.tensors[tensor]["shape"]
        random = Random(f"{self.plan['seed']}/{name}")  # noqa: S311 - no secret
        if form == "absent":
            return None
        whole = self._elements(tensor, name)
        if form == "dense":
            return Given(whole)
        if form == "zeros":
            return Given(bytes(len(whole)))
        if form == "rows":
            rows = frozenset(row for row in range(shape[0]) if random.random() < 0.5)
            width = math.prod(shape[1:])
            kept = {row * width + k for row in rows for k in range(width)}
            return Given(self._masked(tensor, whole, kept), rows=rows)
        count = math.prod(shape)
        kept = {place for place in range(count) if random.random() < (0.3 if count < 100 else 0.001)}
        places = frozenset(kept) if form == "places" else None
        return Given(self._masked(tensor, whole, kept), places=places)

    def entry(self, given: Given, piece: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the part of a piece as a request has it, without the file, and the bytes of the file."""
        tensor = piece["tensor"]
        own = list(indices(piece, self.tensors[tensor]["shape"]))
        cut = self.cut(tensor, given.whole, own)
        item = self.item(tensor)
        if given.rows is not None:
            first, count = piece["offset"][0], piece["shape"][0]
            rows = [row for row in range(count) if row + first in given.rows]
            width = len(cut) // count
            return {"rows": rows}, b"".join(cut[row * width : (row + 1) * width] for row in rows)
        if given.places is not None:
            places = [n for n, index in enumerate(own) if index in given.places]
            return {"places": places}, b"".join(cut[n * item : (n + 1) * item] for n in places)
        return {}, cut

    def cut(self, tensor: int, whole: bytes, own: Sequence[int]) -> bytes:
        """Return the elements with some indices."""
        item = self.item(tensor)
        return b"".join(whole[index * item : (index + 1) * item] for index in own)

    def after(self, number: int, at: int, before: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the values behind a step; without a meaning for other optimizers than `ucp.sgd`."""
        found = dict(before)
        step = self.plan["epochs"][number]["steps"][at]
        rates = {
            tensor: _rate(options["lr"])
            for group, options in zip(self.plan["groups"], self.options(step), strict=True)
            for tensor in group
        }
        for n, tensor in enumerate(self.tensors):
            given = self.given(number, at, n)
            if given is None:
                continue
            if tensor["role"] != "gradient":
                found[tensor["atom"]] = given.whole
            elif self.plan["optimizer"] == "ucp.sgd":
                found[tensor["atom"]] = _descended(found[tensor["atom"]], given, rates[n], tensor["shape"])
        return found

    def _elements(self, tensor: int, name: str) -> bytes:
        """Return elements of a tensor that follow from a name."""
        random = Random(f"{self.plan['seed']}:{name}")  # noqa: S311 - no secret
        count = math.prod(self.tensors[tensor]["shape"])
        if self.tensors[tensor]["dtype"] == "float32":
            return struct.pack(f"<{count}f", *random.choices(_NUMBERS, k=count))
        return random.randbytes(count * self.item(tensor))

    def _masked(self, tensor: int, whole: bytes, kept: set[int]) -> bytes:
        item = self.item(tensor)
        return b"".join(
            whole[n * item : (n + 1) * item] if n in kept else bytes(item) for n in range(len(whole) // item)
        )


def _rate(rate: Any) -> float:
    number = float(rate["$float"]) if isinstance(rate, dict) else rate
    return float(ctypes.c_float(number).value)


def _descended(values: bytes, given: Given, rate: float, shape: Sequence[int]) -> bytes:
    """Return the values of a tensor behind a step (section 6)."""
    count = len(values) // 4
    before, gradients = struct.unpack(f"<{count}f", values), struct.unpack(f"<{count}f", given.whole)
    width = math.prod(shape[1:])
    after = [
        ctypes.c_float(value - ctypes.c_float(rate * gradient).value).value
        if given.rows is None or n // width in given.rows
        else value
        for n, (value, gradient) in enumerate(zip(before, gradients, strict=True))
    ]
    return struct.pack(f"<{count}f", *after)
