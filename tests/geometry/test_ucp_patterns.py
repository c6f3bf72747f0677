"""The patterns of Universal Checkpointing, each at two degrees; DeepSpeed's own code is asked in its environment."""

from __future__ import annotations

import numpy as np
import pytest

from tests.geometry import model
from ucpformat.errors import LayoutError
from ucpformat.geometry import Layout, Lowering, Mesh, MeshAxis, Step, lower
from ucpformat.geometry.vocabulary.universal import (
    averaged_steps,
    fragment_steps,
    fused_expert_steps,
    replicated_steps,
    unique_steps,
    vocabulary_steps,
)


def lowered(steps: tuple[Step, ...], shape: tuple[int, ...], **sizes: int) -> Lowering:
    return lower(Layout(Mesh(tuple(MeshAxis(*axis) for axis in sizes.items())), steps), shape)


def held(lowering: Lowering, *coordinate: int) -> list[int] | None:
    found = model.local_of(lowering, coordinate)
    return None if found is None else found.reshape(-1).tolist()


def test_a_unique_parameter_is_where_it_is() -> None:
    lowering = lowered(unique_steps("pp", 1), (3,), pp=2, dp=2)
    assert [held(lowering, pp, 0) for pp in range(2)] == [None, [0, 1, 2]]


def test_replicas_and_copies_to_be_averaged_are_whole() -> None:
    assert replicated_steps() == ()
    lowering = lowered(averaged_steps(["sp", "tp"]), (3,), sp=2, tp=2)
    assert lowering.reduce == "mean"
    (region,) = lowering.regions()
    assert region.contributions == ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize("degree", [2, 4])
def test_fragments_along_one_dim_and_two(degree: int) -> None:
    logical = np.arange(64).reshape(8, 8)
    rows = lowered(fragment_steps([("tp", 0)]), (8, 8), tp=degree)
    both = lowered(fragment_steps([("tp", 0), ("ep", 1)]), (8, 8), tp=degree, ep=2)
    for rank in range(degree):
        part = np.split(logical, degree)[rank]
        assert held(rows, rank) == part.reshape(-1).tolist()
        assert held(both, rank, 1) == part[:, 4:].reshape(-1).tolist()


@pytest.mark.parametrize("degree", [2, 3])
def test_a_padded_vocabulary(degree: int) -> None:
    lowering = lowered(vocabulary_steps("tp", 2 * degree), (7, 2), tp=degree)
    rows = -(-7 // (2 * degree)) * 2
    padded = np.concatenate((np.arange(14), np.full(2 * rows * degree - 14, -1)))
    parts = [part.tolist() for part in np.split(padded, degree)]
    assert [held(lowering, rank) for rank in range(degree)] == parts


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("degree", [2, 4])
def test_fused_experts_are_split_one_by_one(degree: int, dim: int) -> None:
    lowering = lowered(fused_expert_steps("tp", 3, (4, 8), dim), (12, 8), tp=degree)
    stacked = np.arange(96).reshape(3, 4, 8)
    for rank, part in enumerate(np.split(stacked, degree, axis=dim + 1)):
        assert held(lowering, rank) == part.reshape(-1).tolist()


def test_an_expert_has_two_dims() -> None:
    with pytest.raises(LayoutError):
        fused_expert_steps("tp", 3, (4, 8), 2)
