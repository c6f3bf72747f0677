"""A mixture-of-experts model of any size on any grid of ranks, as an arrangement: no bytes, any scale."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from ucpformat.geometry import (
    BufferPlace,
    Concat,
    Flatten,
    Layout,
    Mesh,
    MeshAxis,
    Only,
    Shard,
    Step,
)
from ucpformat.model.arrangement import ArrangedAtom, Arrangement
from ucpformat.model.atom import Slot

__all__ = ["MOMENTS", "Grid", "Size", "arranged"]

MOMENTS = ("exp_avg", "exp_avg_sq")
Optimizer = Literal["tensors", "buffers"]


@dataclass(frozen=True, slots=True)
class Size:
    """Layers, experts per layer, and the extents of their matrices."""

    layers: int
    experts: int
    hidden: int
    inner: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Degrees of pipeline, tensor and expert parallelism, and of data parallelism over one expert's copies.

    Data parallelism of the dense parameters is ``ep * edp``: experts are spread inside of it. The moments of
    the optimizer are split over data parallelism, tensor by tensor, or as flat buffers as ZeRO-1 has them: one
    for the dense parameters of a stage, one for each rank's experts in it.
    """

    pp: int
    tp: int
    ep: int
    edp: int
    optimizer: Optimizer = "tensors"

    @property
    def mesh(self) -> Mesh:
        """Pipeline stages outermost, tensor parallelism innermost."""
        sizes = {"pp": self.pp, "edp": self.edp, "ep": self.ep, "tp": self.tp}
        return Mesh(tuple(MeshAxis(name, extent) for name, extent in sizes.items()))

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.pp * self.tp * self.ep * self.edp


def arranged(size: Size, grid: Grid) -> Arrangement:
    """The value (bfloat16) and two moments (float32) of every weight, under a grid."""
    return _Builder(size, grid).arrangement()


@dataclass(frozen=True, slots=True)
class _Weight:
    name: str
    shape: tuple[int, ...]
    stage: int
    group: int | None
    dim: int | None


class _Builder:
    def __init__(self, size: Size, grid: Grid) -> None:
        self.size = size
        self.grid = grid
        self.mesh = grid.mesh
        self.layouts: dict[tuple[Step, ...], int] = {}

    def arrangement(self) -> Arrangement:
        weights = sorted(self._weights(), key=lambda weight: weight.name)
        places = self._places(weights)
        atoms = [
            ArrangedAtom(
                weight.name,
                (
                    *(self._slot(name, "float32", weight, places) for name in MOMENTS),
                    self._slot("value", "bfloat16", weight, None),
                ),
            )
            for weight in weights
        ]
        layouts = tuple(Layout(self.mesh, steps) for steps in self.layouts)
        return Arrangement((self.mesh,), layouts, tuple(atoms))

    def _weights(self) -> list[_Weight]:
        size, grid = self.size, self.grid
        h, f = size.hidden, size.inner
        found: list[_Weight] = []
        for layer in range(size.layers):
            stage = layer * grid.pp // size.layers
            head = f"layers.{layer}."
            found += [
                _Weight(f"{head}attention.qkv.weight", (3 * h, h), stage, None, 0),
                _Weight(f"{head}attention.out.weight", (h, h), stage, None, 1),
                _Weight(f"{head}router.weight", (size.experts, h), stage, None, None),
                _Weight(f"{head}norm.weight", (h,), stage, None, None),
            ]
            for expert in range(size.experts):
                group = expert * grid.ep // size.experts
                found += [
                    _Weight(f"{head}experts.{expert}.up.weight", (2 * f, h), stage, group, 0),
                    _Weight(f"{head}experts.{expert}.down.weight", (h, f), stage, group, 1),
                ]
        return found

    def _slot(self, name: str, dtype: str, weight: _Weight, places: dict[str, BufferPlace] | None) -> Slot:
        steps: tuple[Step, ...] = (Only("pp", (weight.stage,)),)
        steps += () if weight.group is None else (Only("ep", (weight.group,)),)
        steps += () if weight.dim is None else (Shard("tp", weight.dim, "even"),)
        place = None
        if places is not None:
            steps += (Flatten(),)
            if self.grid.optimizer == "buffers":
                place = places[weight.name]
                steps += (Concat(_buffer(weight)),)
            steps += (Shard("edp", 0),)
            steps += (Shard("ep", 0),) if weight.group is None else ()
        index = self.layouts.setdefault(steps, len(self.layouts))
        return Slot(name, dtype, weight.shape, index, place=place)

    def _places(self, weights: list[_Weight]) -> dict[str, BufferPlace]:
        """One after another in each buffer, which is padded to a multiple of twice the data parallel degree."""
        ends: defaultdict[str, int] = defaultdict(int)
        offsets: dict[str, int] = {}
        for weight in weights:
            buffer = _buffer(weight)
            offsets[weight.name] = ends[buffer]
            ends[buffer] += math.prod(weight.shape) // (1 if weight.dim is None else self.grid.tp)
        multiple = 2 * self.grid.ep * self.grid.edp
        totals = {buffer: (-(-end // multiple) * multiple,) for buffer, end in ends.items()}
        return {
            weight.name: BufferPlace((offsets[weight.name],), totals[_buffer(weight)]) for weight in weights
        }


def _buffer(weight: _Weight) -> str:
    return f"{weight.stage}" if weight.group is None else f"{weight.stage}.{weight.group}"
