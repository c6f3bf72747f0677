"""Uneven partitions as AccPar makes them: devices of two speeds, and each layer split by its own axis and ratio.

    torchrun --nproc-per-node 3 examples/accpar.py --folder out/accpar --groups 2x4 1x1

AccPar (Song et al., HPCA 2020, https://github.com/linghaosong/AccPar) gives every layer one of three types: I splits
the batch, II the layer's inputs, III its outputs; which, and in which ratio, comes of a model of what the devices
compute and send. Here two groups of devices share a layer in whole rows, then the devices of a group in equal parts.
What matters to a checkpoint is the result: layouts with parts of any size, and with none.

Called again with other groups, the script loads what it saved before under the layouts of the new plan.
``--slower 0.5`` plans again as if the first group had become half as fast, and moves the tensors between the ranks.
``docs/plan.md`` has a section on it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

import ucpformat as ucp

Type = Literal["I", "II", "III"]
TYPES: tuple[Type, ...] = ("I", "II", "III")
Seconds = NDArray[np.float64]
ELEMENT_BYTES = 4


@dataclass(frozen=True)
class Layer:
    """A linear or convolutional layer: its weight is (outputs, inputs, ...), with ``kernel`` elements for each pair.

    ``before`` and ``after`` are positions of the feature map that comes in and of the one that goes out.
    """

    name: str
    batch: int
    inputs: int
    outputs: int
    kernel: int = 1
    before: int = 1
    after: int = 1

    @property
    def operations(self) -> int:
        """Of one step: forward, errors backward, and gradients, each a multiplication of two matrices."""
        return 3 * 2 * self.batch * self.inputs * self.outputs * self.kernel * self.after

    @property
    def bytes_in(self) -> int:
        """Of the features that come in, and of the errors that go out to where those came from."""
        return self.batch * self.inputs * self.before * ELEMENT_BYTES

    @property
    def weight_bytes(self) -> int:
        """Of the weight, and of its gradient."""
        return self.inputs * self.outputs * self.kernel * ELEMENT_BYTES

    def summed(self, kind: Type) -> int:
        """Bytes of the partial sums that all parts of a layer of this type exchange."""
        bytes_out = self.batch * self.outputs * self.after * ELEMENT_BYTES
        return {"I": self.weight_bytes, "II": bytes_out, "III": self.bytes_in}[kind]

    def extent(self, kind: Type) -> int:
        """How many rows there are to share out."""
        return {"I": self.batch, "II": self.inputs, "III": self.outputs}[kind]

    def part(self, kind: Type, rows: int) -> Layer:
        """What is left of it where so many rows are taken."""
        if kind == "I":
            return replace(self, batch=rows)
        return replace(self, inputs=rows) if kind == "II" else replace(self, outputs=rows)


@dataclass(frozen=True)
class Group:
    """Equal devices: how many, the operations that each does in a second, and the bytes that it sends."""

    devices: int
    speed: float
    bandwidth: float


class Partition(NamedTuple):
    """How one layer is held: by type between the groups, with the rows of each, and by type inside the groups."""

    between: Type
    rows: tuple[int, int]
    inside: Type


def moved(layer: Layer, before: Type, kind: Type, share: Seconds) -> Seconds:
    """Bytes that a device fetches between a layer of type ``before`` and this one (the paper's table of conversions).

    Features and errors are cut by the batch or by channels; where the two layers cut them alike, nothing moves.
    """
    if (before, kind) in {("I", "I"), ("II", "III"), ("III", "II")}:
        return np.zeros_like(share)
    if (before, kind) in {("I", "II"), ("III", "I")}:  # both are cut, by different axes
        return share * (1 - share) * 2 * layer.bytes_in
    return (1 - share) * layer.bytes_in  # one of the two is whole on one side


def seconds(
    layer: Layer, kind: Type, before: Type | None, share: Seconds, speed: float, bandwidth: float
) -> Seconds:
    """What one step of a layer takes a device that has ``share`` of it: to compute, and to fetch what it lacks."""
    fetched = np.where((share > 0) & (share < 1), layer.summed(kind), 0.0)
    if before is not None:
        fetched = fetched + moved(layer, before, kind, share)
    return share * layer.operations / speed + fetched / bandwidth


def shared(
    layer: Layer, kind: Type, before: Type | None, groups: Sequence[Group]
) -> tuple[tuple[int, int], float]:
    """The rows of each of the two groups that end soonest, and when the slower of them ends."""
    extent = layer.extent(kind)
    shares = np.arange(extent + 1) / extent
    ends = [
        seconds(layer, kind, before, own, group.devices * group.speed, group.devices * group.bandwidth)
        for own, group in zip((shares, 1 - shares), groups, strict=True)
    ]
    slower = np.maximum(*ends)
    best = int(slower.argmin())
    return (best, extent - best), float(slower[best])


def cheapest(count: int, cost: Callable[[int, Type, Type | None], float]) -> tuple[Type, ...]:
    """The types of a chain of layers whose costs add up to the least, by dynamic programming over the chain."""
    best: dict[Type, tuple[float, tuple[Type, ...]]] = {
        kind: (cost(0, kind, None), (kind,)) for kind in TYPES
    }
    for number in range(1, count):
        best = {
            kind: min(
                (so_far + cost(number, kind, before), (*chosen, kind))
                for before, (so_far, chosen) in best.items()
            )
            for kind in TYPES
        }
    return min(best.values())[1]


def plan(network: Sequence[Layer], groups: Sequence[Group]) -> list[Partition]:
    """Choose how two groups share each layer, and then how the devices of both do with what their group has."""
    between = cheapest(len(network), lambda at, kind, before: shared(network[at], kind, before, groups)[1])
    befores: list[Type | None] = [None, *between[:-1]]
    rows = [
        shared(layer, kind, before, groups)[0]
        for layer, kind, before in zip(network, between, befores, strict=True)
    ]
    parts = [
        [layer.part(kind, own) for own in owns]
        for layer, kind, owns in zip(network, between, rows, strict=True)
    ]

    def inside(at: int, kind: Type, before: Type | None) -> float:
        return max(
            float(seconds(part, kind, before, np.array(1 / group.devices), group.speed, group.bandwidth))
            for part, group in zip(parts[at], groups, strict=True)
        )

    return [Partition(*one) for one in zip(between, rows, cheapest(len(network), inside), strict=True)]


def mesh_of(groups: Sequence[Group]) -> ucp.Mesh:
    """The groups, of unequal width, one rank for each device."""
    widths = tuple(group.devices for group in groups)
    return ucp.Mesh((ucp.MeshAxis("group", len(groups)), ucp.layouts.RaggedAxis("device", "group", widths)))


def layout_of(partition: Partition, mesh: ucp.Mesh, dims: dict[Type, int]) -> ucp.Layout:
    """The layout of a tensor whose dimensions of inputs (II) and outputs (III) are ``dims``; type I replicates it."""
    steps = []
    if partition.between in dims:
        steps.append(ucp.Shard("group", dims[partition.between], partition.rows))
    if partition.inside in dims:
        steps.append(ucp.Shard("device", dims[partition.inside], "balanced"))
    return ucp.Layout(mesh, tuple(steps))


def layouts_of(
    network: Sequence[Layer], partitions: Sequence[Partition], mesh: ucp.Mesh
) -> dict[str, ucp.TensorLayout]:
    """How weights, biases and their moments are held, by the dotted paths of `state_of`."""
    found = {}
    for layer, partition in zip(network, partitions, strict=True):
        weight = (layer.outputs, layer.inputs, *((layer.kernel,) if layer.kernel > 1 else ()))
        whole: list[tuple[str, tuple[int, ...], dict[Type, int]]] = [
            (f"{layer.name}.weight", weight, {"II": 1, "III": 0}),
            (f"{layer.name}.bias", (layer.outputs,), {"III": 0}),
        ]
        for (name, shape, dims), tree in product(whole, ("model", "moments")):
            found[f"{tree}.{name}"] = ucp.TensorLayout(layout_of(partition, mesh, dims), shape)
    return found


def state_of(layouts: dict[str, ucp.TensorLayout], values: Callable[[str], Any]) -> dict[str, Any]:
    """Tensors by tree and name."""
    state: dict[str, Any] = {}
    for path in layouts:
        if (tensor := values(path)) is not None:
            tree, _, name = path.partition(".")
            state.setdefault(tree, {})[name] = tensor
    return state


def empty_part(held: ucp.TensorLayout, rank: int) -> NDArray[np.float32] | None:
    """Memory for what a rank holds of a tensor; None where that is nothing."""
    coordinate = held.layout.mesh.find(rank)
    part = None if coordinate is None else ucp.layouts.lower(held.layout, held.shape).at(coordinate)
    return None if part is None else np.empty(part.shape, np.float32)


def small_network(batch: int = 64) -> list[Layer]:
    """A network for images of 32 x 32: convolutions with few weights, then large linear layers."""
    return [
        Layer("conv1", batch, 3, 32, 9, 32 * 32, 32 * 32),
        Layer("conv2", batch, 32, 64, 9, 16 * 16, 16 * 16),
        Layer("fc1", batch, 64 * 8 * 8, 250),
        Layer("fc2", batch, 250, 250),
        Layer("fc3", batch, 250, 10),
    ]


def group(text: str) -> Group:
    """A group as the command line has it: ``2x4`` is two devices of 4 GFLOP/s, all with the same network."""
    devices, speed = text.split("x")
    return Group(int(devices), float(speed) * 1e9, 1e9)


def shown(network: Sequence[Layer], partitions: Sequence[Partition]) -> None:
    for layer, partition in zip(network, partitions, strict=True):
        rows = " + ".join(map(str, partition.rows))
        print(f"{layer.name}: type {partition.between} of {rows} rows, inside type {partition.inside}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Save, load and reshard a network under uneven partitions.")
    parser.add_argument("--folder", required=True, metavar="DIR", help="the run directory, or an fsspec URL")
    parser.add_argument(
        "--groups", nargs=2, type=group, required=True, metavar="COUNTxSPEED", help="two groups of devices"
    )
    parser.add_argument(
        "--slower", type=float, metavar="FACTOR", help="plan again with another speed of the first"
    )
    parser.add_argument("--rendezvous", default="env://", metavar="URL", help="init_method of the group")
    chosen = parser.parse_args(arguments)
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if world != sum(one.devices for one in chosen.groups):
        parser.error("as many processes as devices, please")
    dist.init_process_group("gloo", init_method=chosen.rendezvous, rank=rank, world_size=world)

    network = small_network()
    mesh = mesh_of(chosen.groups)
    partitions = plan(network, chosen.groups)
    layouts = layouts_of(network, partitions, mesh)
    with ucp.CheckpointManager(chosen.folder) as manager:
        state = state_of(layouts, lambda path: empty_part(layouts[path], rank))
        step = manager.resume(state, layouts=layouts)
        if step is None:
            random = np.random.default_rng(0)
            whole = state_of(
                layouts, lambda path: random.standard_normal(layouts[path].shape, dtype=np.float32)
            )
            state = ucp.redistribute(whole, target_layouts=layouts)
        if chosen.slower is not None:
            first, second = chosen.groups
            partitions = plan(network, [replace(first, speed=first.speed * chosen.slower), second])
            wanted = layouts_of(network, partitions, mesh)
            state = ucp.redistribute(state, layouts=layouts, target_layouts=wanted)
            layouts = wanted
        if rank == 0:
            shown(network, partitions)
        manager.save((step or 0) + 1, state, layouts=layouts)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
