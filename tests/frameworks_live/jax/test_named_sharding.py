"""JAX's ``NamedSharding`` against our steps: index maps and real arrays on eight devices."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from tests.geometry.model import counter, local_array
from tests.geometry.moves import moved
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Lowering, Mesh, MeshAxis, lower, named_sharding_steps

Spec = tuple[str | tuple[str, ...] | None, ...]

SPECS: list[Spec] = [
    (),
    ("x",),
    (None, "y"),
    ("x", "y"),
    ("y", "x"),
    (("x", "y"),),
    (("y", "x"),),
    (("y", "x"), None, "z"),
    (("x", "y", "z"), None),
    (("z", "x"), None, ("y",)),
    (None, ("z", "y", "x")),
    ("z", (), ("x", "y")),
]
SHAPE = (16, 8, 24)


def meshes() -> list[JaxMesh]:
    """Axes in several sizes and orders, and the devices in no order at all."""
    devices = np.array(jax.devices())
    assert len(devices) == 8
    shuffled = devices[[3, 0, 6, 1, 7, 2, 5, 4]]
    return [
        JaxMesh(devices.reshape(2, 2, 2), ("x", "y", "z")),
        JaxMesh(devices.reshape(4, 2, 1), ("z", "y", "x")),
        JaxMesh(shuffled.reshape(2, 4, 1), ("x", "y", "z")),
        JaxMesh(shuffled.reshape(1, 8, 1), ("x", "y", "z")),
        JaxMesh(devices[:4].reshape(2, 1, 2), ("y", "z", "x")),
    ]


def ours(mesh: JaxMesh, spec: Spec, shape: tuple[int, ...]) -> Lowering:
    axes = tuple(
        MeshAxis(str(name), size) for name, size in zip(mesh.axis_names, mesh.devices.shape, strict=True)
    )
    ranks = tuple(device.id for device in mesh.devices.flat)
    return lower(Layout(Mesh(axes, ranks), named_sharding_steps(spec)), shape)


def normal(index: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(*part.indices(extent)[:2]) for part, extent in zip(index, shape, strict=True))


def held(array: Any) -> dict[int, np.ndarray[Any, Any]]:
    return {shard.device.id: np.asarray(shard.data) for shard in array.addressable_shards}


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_index_maps_and_shards_of_real_arrays(spec: Spec) -> None:
    """Each device's slice is our piece, and its buffer our local tensor; then every mesh from every other."""
    full = counter(SHAPE)
    arrays = {}
    for mesh in meshes():
        sharding = NamedSharding(mesh, PartitionSpec(*spec))
        lowering = ours(mesh, spec, SHAPE)
        array = jax.device_put(full.astype(np.int32), sharding)
        local = held(array)
        assert lowering.layout.mesh.size == len(local)
        for device, index in sharding.devices_indices_map(SHAPE).items():
            mine = lowering.at(lowering.layout.mesh.coordinate_of(device.id))
            assert mine is not None
            (piece,) = mine.pieces
            assert normal(index, SHAPE) == tuple(
                slice(first, last) for first, last in zip(piece.box.offset, piece.box.stop, strict=True)
            )
            np.testing.assert_array_equal(local_array(mine, full), local[device.id])
        arrays[mesh] = (lowering, local)
    for (source, local), (target, wanted) in itertools.permutations(arrays.values(), 2):
        found = moved(source, local, target)
        assert found.keys() == wanted.keys()
        for rank, part in wanted.items():
            np.testing.assert_array_equal(found[rank], part.reshape(-1))


def test_every_spec_becomes_every_other() -> None:
    mesh, other = meshes()[0], meshes()[1]
    full = counter(SHAPE).astype(np.int32)
    for before, after in itertools.permutations(SPECS, 2):
        source = held(jax.device_put(full, NamedSharding(mesh, PartitionSpec(*before))))
        wanted = held(jax.device_put(full, NamedSharding(other, PartitionSpec(*after))))
        found = moved(ours(mesh, before, SHAPE), source, ours(other, after, SHAPE))
        for rank, part in wanted.items():
            np.testing.assert_array_equal(found[rank], part.reshape(-1))


@pytest.mark.parametrize("shape", [(7,), (12,), (1,), (4,)])
def test_what_does_not_divide_is_refused_by_both(shape: tuple[int, ...]) -> None:
    mesh = meshes()[0]
    spec: Spec = (("x", "y", "z"),)
    with pytest.raises(ValueError, match="evenly divide"):
        NamedSharding(mesh, PartitionSpec(*spec)).shard_shape(shape)
    with pytest.raises(UcpError) as refusal:
        ours(mesh, spec, shape)
    assert refusal.value.code == "UCP-E-LAYOUT"


def test_no_element_divides_by_all() -> None:
    mesh = meshes()[0]
    spec: Spec = (None, ("x", "y"))
    assert NamedSharding(mesh, PartitionSpec(*spec)).shard_shape((3, 0)) == (3, 0)
    assert all(region.local_map.size == 0 for region in ours(mesh, spec, (3, 0)).regions())


@pytest.mark.parametrize("spec", [("x", "x"), (("x", "x"),), ("w",)])
def test_axes_used_twice_or_unknown_are_refused_by_both(spec: Spec) -> None:
    mesh = meshes()[0]
    with pytest.raises(Exception, match=r"duplicate|axis|resource"):
        NamedSharding(mesh, PartitionSpec(*spec))
    with pytest.raises(UcpError) as refusal:
        ours(mesh, spec, SHAPE)
    assert (refusal.value.code, refusal.value.at.startswith("/steps/")) == ("UCP-E-LAYOUT", True)


def test_replicas_are_as_many_as_devices_divide_by_parts() -> None:
    for mesh in meshes():
        for spec in SPECS:
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            distinct = {
                tuple(map(str, normal(index, SHAPE)))
                for index in sharding.devices_indices_map(SHAPE).values()
            }
            regions = ours(mesh, spec, SHAPE).regions()
            assert len(regions) == len(distinct)
            assert sum(len(region.holders) for region in regions) == math.prod(mesh.devices.shape)
