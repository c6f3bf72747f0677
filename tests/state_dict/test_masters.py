"""A state of float32 gets the master copies of a checkpoint whose weights are bfloat16, and nothing is rounded."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import SHAPES, make_checkpoint
from ucpformat import UcpError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("masters") / "a.ucp")


def state(kind: torch.dtype) -> dict[str, torch.Tensor]:
    """The trained weights, one of them under its tied name as well."""
    found = {name: torch.zeros(shape, dtype=kind) for name, shape in SHAPES.items()}
    return {**found, "head.weight": torch.zeros(SHAPES["embed.weight"], dtype=kind)}


def test_each_type_gets_the_copy_of_its_own(path: Path) -> None:
    full, short = state(torch.float32), state(torch.bfloat16)
    ucpformat.load(path, {"model": full}, strict=False)
    ucpformat.load(path, {"model": short}, strict=False)
    with ucpformat.open(path) as checkpoint:
        for name in (*SHAPES, "head.weight"):
            master = checkpoint[name]["master"].read()
            assert np.array_equal(full[name].numpy(), master)
            assert torch.equal(short[name], full[name].bfloat16())
    assert any(not torch.equal(full[name], short[name].float()) for name in SHAPES)


def test_a_cast_is_made_of_the_master_copy(path: Path) -> None:
    wide = state(torch.float64)
    with pytest.raises(UcpError, match="cast=True converts"):
        ucpformat.load(path, {"model": wide}, strict=False)
    ucpformat.load(path, {"model": wide}, strict=False, cast=True)
    with ucpformat.open(path) as checkpoint:
        for name in SHAPES:
            assert np.array_equal(wide[name].numpy(), checkpoint[name]["master"].read())


def test_a_master_copy_that_was_taken_is_not_unexpected(path: Path) -> None:
    """A stock optimizer's state has no master copies, and the model has them now."""
    with ucpformat.open(path) as checkpoint:
        slots = {
            name: [slot for slot in atom if slot not in ("value", "master")]
            for name, atom in checkpoint.items()
        }
        shapes = {(name, slot): checkpoint[name][slot].shape for name, held in slots.items() for slot in held}
    states = {name: {slot: torch.zeros(shapes[name, slot]) for slot in slots[name]} for name in SHAPES}
    model = {**state(torch.float32), "fixed": torch.zeros(3, 5).bfloat16(), "table": torch.zeros(2, 2)}
    wanted = {"model": model | {"count": torch.tensor(0)}, "optim": {"state": states}}
    ucpformat.load(path, wanted, only=["model", "optim.state"])
    with ucpformat.open(path) as checkpoint:
        assert np.array_equal(model["norm"].numpy(), checkpoint["norm"]["master"].read())


def test_a_state_of_another_shape_is_no_master_copy(tmp_path: Path) -> None:
    spec = {"value": ucpformat.SlotSpec("bfloat16", (4,)), "master": ucpformat.SlotSpec("float32", (2,))}
    with ucpformat.CheckpointWriter(tmp_path / "c.ucp", [ucpformat.AtomSpec("w", spec)]) as writer:
        writer.write("w", "value", np.ones(4, ml_dtypes.bfloat16))
        writer.write("w", "master", np.ones(2, np.float32))
    state = {"model": {"w": torch.zeros(4, dtype=torch.float64)}}
    ucpformat.load(tmp_path / "c.ucp", state, cast=True, strict=False)
    assert state["model"]["w"].tolist() == [1.0] * 4
