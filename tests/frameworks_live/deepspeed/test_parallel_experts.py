"""Experts under tensor parallelism, split among its ranks or whole on each, and in pipelines; both without experts.

DeepSpeed runs these on CPUs with one function of gloo's made to take flat tensors (`make_moe_parallel`).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed import jobs
from tests.frameworks_live.deepspeed.jobs import made_by
from tests.frameworks_live.deepspeed.make_moe_parallel import CASES, DEGREE, EXPERTS, Grid
from tests.frameworks_live.deepspeed.test_experts import MARK, named
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.deepspeed.test_tensor_parallel import rules, split
from ucpformat.errors import UcpError
from ucpformat.frameworks.kinds.conversion import convert_checkpoint

pytestmark = pytest.mark.distributed

PATTERNS = rules((["**.up.*"], [split(0)]), (["**.down.weight"], [split(1)]), (["**"], []))
DIMS = {"up.weight": 0, "up.bias": 0, "down.weight": 1}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_by("make_moe_parallel", CASES, tmp_path_factory, "")
    (folder / "rules.json").write_text(json.dumps(PATTERNS))
    return folder


def converted(made: Path, name: str, out: Path, source: Path | None = None) -> Path:
    patterns = {"patterns": str(made / "rules.json")} if CASES[name].has_shards else {}
    if name == "pp-tp-z0-fp32":
        patterns["tied_layers"] = "embed:0,5"  # which no file says
    return jobs.converted(source or made / name / "ckpt", out, patterns)


def gathered(folder: Path, name: str) -> dict[str, dict[str, torch.Tensor]]:
    """Everything under global names, shards put together as `Block` divides them; equal wherever several hold it."""
    shards: dict[str, dict[str, dict[int, torch.Tensor]]] = {}
    for path in sorted(folder.glob("reference-*.pt")):
        rank: dict[str, Any] = torch.load(path, weights_only=True)
        for local, held in rank["tensors"].items():
            for slot, tensor in held.items():
                parts = shards.setdefault(named(local, rank["expert_rank"], DEGREE), {}).setdefault(slot, {})
                assert torch.equal(parts.setdefault(rank["tensor_rank"], tensor), tensor)
    whole: dict[str, dict[str, torch.Tensor]] = {}
    for atom, slots in shards.items():
        key = ".".join(atom.split(".")[-2:])
        is_split = CASES[name].has_shards and key in DIMS and (CASES[name].is_split or MARK not in atom)
        for slot, parts in slots.items():
            held = [parts[number] for number in sorted(parts)]
            if is_split:
                assert len(held) == Grid.size
                assert not torch.equal(held[0], held[1])
            else:
                assert all(torch.equal(part, held[0]) for part in held)
            whole.setdefault(atom, {})[slot] = torch.cat(held, DIMS[key]) if is_split else held[0]
    return whole


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_what_its_ranks_gather(made: Path, name: str, tmp_path: Path) -> None:
    path = converted(made, name, tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    wanted = gathered(made / name, name)
    mixtures = 0 if not CASES[name].has_experts else 2 if CASES[name].stages == 1 else 3
    assert sum(MARK in atom for atom in wanted) == mixtures * EXPERTS * 3
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint) == set(wanted)
        for atom, held in wanted.items():
            has_master = CASES[name].dtype == torch.bfloat16
            slots = {slot for slot in held if slot != "master" or has_master}
            assert set(checkpoint[atom]) - {"step"} == slots, atom
            for slot in slots:
                found = checkpoint[atom][slot].read()
                assert found.shape == tuple(held[slot].shape), (atom, slot)
                assert found.tobytes() == array_of(held[slot]).tobytes(), (atom, slot)
            assert checkpoint[atom]["step"].read() == 3
        groups = checkpoint.state.optimizers["optim"].groups
        assert [group.options["lr"] for group in groups] == [0.01, 0.02] * (2 if mixtures else 1)
        assert sorted(atom for group in groups for atom in group.atoms) == sorted(wanted)
        assert all((MARK in atom) == ("moe" in group.options) for group in groups for atom in group.atoms)


@pytest.mark.parametrize("name", ["tp-whole-z1-bf16", "tp-split-z1-bf16", "pp-z1-bf16"])
def test_a_missing_expert_is_refused(made: Path, name: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / name / "ckpt", copy)
    victim = "layer_1_expert_1_mp_rank_00_model_states.pt"
    if name.startswith("pp"):
        victim = "layer_1_expert_1_mp_rank_01_model_states.pt"
    (copy / "step3" / victim).unlink()
    with pytest.raises(UcpError, match="expert_1") as refusal:
        converted(made, name, tmp_path / "out.ucp", copy)
    assert refusal.value.code == "UCP-E-SOURCE"


def test_experts_of_a_pipeline_go_out_to_a_plain_module(made: Path, tmp_path: Path) -> None:
    """DeepSpeed loads them by the names of the layers."""
    middle = converted(made, "pp-z1-bf16", tmp_path / "middle.ucp")
    with pytest.raises(UcpError, match="experts in a pipeline") as refusal:
        convert_checkpoint(middle, tmp_path / "no", source_kind="ucp", destination_kind="deepspeed")
    assert refusal.value.code == "UCP-E-MISMATCH"
    settings = {"pipeline": "", "ep_size": "4", "world_size": "4"}
    out = tmp_path / "plain"
    convert_checkpoint(middle, out, source_kind="ucp", destination_kind="deepspeed", settings=settings)
    again = converted(made, "pp-z1-bf16", tmp_path / "again.ucp", out)
    with ucpformat.open(middle) as one, ucpformat.open(again) as other:
        assert set(one) == set(other)
        for atom, view in one.items():
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in other[atom].items()
            }, atom
