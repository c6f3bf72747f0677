"""A mixture-of-experts model of any size on any grid of ranks: its layouts, and which tensor has which."""

from __future__ import annotations

from dataclasses import dataclass

from ucpformat.geometry import Flatten, Layout, Mesh, MeshAxis, Only, Shard, Step


@dataclass(frozen=True)
class Size:
    layers: int
    experts: int
    hidden: int
    inner: int


@dataclass(frozen=True)
class Arrangement:
    """A table of layouts, and for every tensor the index of its layout and its shape."""

    layouts: tuple[Layout, ...]
    tensors: tuple[tuple[int, tuple[int, ...]], ...]


def spread(size: Size, *, pp: int, edp: int, ep: int, tp: int) -> Arrangement:
    """Value and two moments of every weight: tensor, pipeline and expert parallel, moments as ZeRO splits them."""
    sizes = {"pp": pp, "edp": edp, "ep": ep, "tp": tp}
    mesh = Mesh(tuple(MeshAxis(name, extent) for name, extent in sizes.items()))
    layouts: list[Layout] = []
    kinds: dict[tuple[int, int | None, int | None], tuple[int, int]] = {}

    def kind(stage: int, group: int | None, dim: int | None) -> tuple[int, int]:
        if (stage, group, dim) not in kinds:
            steps: tuple[Step, ...] = (Only("pp", (stage,)),)
            steps += () if group is None else (Only("ep", (group,)),)
            steps += () if dim is None else (Shard("tp", dim, "even"),)
            zero: tuple[Step, ...] = (Flatten(), Shard("edp", 0))
            zero += (Shard("ep", 0),) if group is None else ()
            layouts.extend((Layout(mesh, steps), Layout(mesh, (*steps, *zero))))
            kinds[stage, group, dim] = (len(layouts) - 2, len(layouts) - 1)
        return kinds[stage, group, dim]

    tensors: list[tuple[int, tuple[int, ...]]] = []

    def add(stage: int, group: int | None, dim: int | None, shape: tuple[int, ...]) -> None:
        value, moment = kind(stage, group, dim)
        tensors.extend(((value, shape), (moment, shape), (moment, shape)))

    h, f = size.hidden, size.inner
    for layer in range(size.layers):
        stage = layer * pp // size.layers
        add(stage, None, 0, (3 * h, h))
        add(stage, None, 1, (h, h))
        add(stage, None, None, (size.experts, h))
        add(stage, None, None, (h,))
        for expert in range(size.experts):
            group = expert * ep // size.experts
            add(stage, group, 0, (2 * f, h))
            add(stage, group, 1, (h, f))
    return Arrangement(tuple(layouts), tuple(tensors))
