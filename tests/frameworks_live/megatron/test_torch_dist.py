"""Checkpoints that megatron-core writes: in, bit-equal to its memory; out, and resumed by it at other degrees."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat as ucp
from tests.frameworks_live.megatron import references
from tests.frameworks_live.megatron.cases import CASES, Case
from tests.processes import launch
from ucpformat.frameworks.kinds import convert_checkpoint, detect_kind
from ucpformat.frameworks.torch_dcp.tagged import decode

WORKER = "tests.frameworks_live.megatron.make"

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("megatron")]


@pytest.fixture(scope="module", params=list(CASES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A case, and the folder with the checkpoint, its conversion, and what was in memory."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    launch(WORKER, ["save", str(folder), name], CASES[name].world)
    assert detect_kind(folder / "ckpt") == "megatron"
    convert_checkpoint(folder / "ckpt", folder / "ucp", source_kind="megatron", destination_kind="ucp")
    return name, folder


def expected(case: Case, folder: Path) -> references.Tensors:
    whole = references.whole(references.ranks_of(folder, "rank"))
    return whole if case.by_layer else references.stacked(whole)


def test_every_tensor_is_what_lay_in_memory(saved: tuple[str, Path]) -> None:
    name, folder = saved
    assert not ucp.validate(folder / "ucp")
    with ucp.open(folder / "ucp") as checkpoint:
        wanted = expected(CASES[name], folder)
        assert {atom: set(view) for atom, view in checkpoint.items()} == {
            atom: set(slots) for atom, slots in wanted.items()
        }
        for atom, slots in wanted.items():
            for slot, tensor in slots.items():
                found = torch.from_numpy(checkpoint[atom][slot][...])
                assert found.dtype == tensor.dtype
                assert torch.equal(found, tensor), (atom, slot)


def test_everything_else_is_carried(saved: tuple[str, Path]) -> None:
    name, folder = saved
    ranks = references.ranks_of(folder, "rank")
    with ucp.open(folder / "ucp") as checkpoint:
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 7
        values = {key: decode(value, at=key) for key, value in checkpoint.state.values.items()}
    args: Any = values["args"]
    assert args.type == "argparse.Namespace"
    assert args.value["names"] == ["a", "b"]
    assert values["content_metadata"]["distrib_optim_sharding_type"] == CASES[name].sharding  # type: ignore[index]
    for rank in range(CASES[name].world):
        key = f"rng_state/shard_{rank}_{CASES[name].world}"
        saved_numbers: Any = values[key]
        assert saved_numbers[0][0]["numbers"].data == (torch.arange(3) + rank).numpy().tobytes()
    optimizer: Any = values["optimizer"]
    groups = optimizer.get("optimizer", optimizer)["param_groups"]
    assert len(groups) == len(ranks[0]["groups"])
    for kept, original in zip(groups, ranks[0]["groups"], strict=True):
        shared = kept.keys() & original.keys() - {"step"}
        assert {"lr", "betas", "eps", "weight_decay", "wd_mult"} <= shared
        assert {key: kept[key] for key in shared} == {key: original[key] for key in shared}


def test_megatron_resumes_at_another_degree(saved: tuple[str, Path]) -> None:
    name, folder = saved
    case = CASES[name]
    convert_checkpoint(folder / "ucp", folder / "exported", source_kind="ucp", destination_kind="megatron")
    world, tp, pp = case.resumed
    launch(WORKER, ["load", str(folder), name, str(tp), str(pp)], world)
    before = references.whole(references.ranks_of(folder, "rank"))
    after = references.whole(references.ranks_of(folder, "resumed"))
    assert {key: set(slots) for key, slots in before.items()} == {
        key: set(slots) for key, slots in after.items()
    }
    for atom, slots in before.items():
        for slot, tensor in slots.items():
            assert torch.equal(after[atom][slot], tensor), (atom, slot)
    if case.forward:
        losses = torch.load(folder / "losses.pt", weights_only=True)
        resumed = torch.load(folder / "resumed-losses.pt", weights_only=True)
        assert losses[0] != losses[1]
        torch.testing.assert_close(torch.tensor(resumed), torch.tensor(losses), rtol=1e-5, atol=1e-6)
    with torch.serialization.safe_globals([argparse.Namespace]):
        common = torch.load(folder / "resumed-common.pt", weights_only=True)
    assert common["iteration"] == 7
    assert common["args"] == argparse.Namespace(
        num_layers=4, lr=1e-2, seed=5, names=["a", "b"], dtype=torch.float32
    )


def test_there_and_back(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = saved
    convert_checkpoint(folder / "ucp", tmp_path / "out", source_kind="ucp", destination_kind="megatron")
    assert detect_kind(tmp_path / "out") == "megatron"
    convert_checkpoint(tmp_path / "out", tmp_path / "ucp", source_kind="megatron", destination_kind="ucp")
    with ucp.open(folder / "ucp") as first, ucp.open(tmp_path / "ucp") as second:
        assert first.state.values == second.state.values
        assert list(first) == list(second)
        for atom in first:
            for slot in first[atom]:
                one, two = first[atom][slot], second[atom][slot]
                assert (one[...] == two[...]).all()
                assert one.stored.slot.annotations == two.stored.slot.annotations
