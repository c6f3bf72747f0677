"""Experts under tensor parallelism, split among its ranks or whole on each, and in pipelines; both without experts.

DeepSpeed runs these on CPUs with one function of gloo's made to take flat tensors (`make_moe_parallel`).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed import jobs
from tests.frameworks_live.deepspeed.jobs import made_by
from tests.frameworks_live.deepspeed.make_moe_parallel import CASES, DEGREE, EXPERTS, TARGETS, Grid
from tests.frameworks_live.deepspeed.test_experts import MARK, named
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.deepspeed.test_tensor_parallel import rules, split
from tests.processes import Ranks, launch_in_turn
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

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


@dataclass(frozen=True)
class Way:
    """A resumption of a pipeline with experts: of what, as what, on how many ranks, with what first layers."""

    source: str
    target: str
    world: int
    pipeline: str = ""

    def __str__(self) -> str:
        return f"{self.source}-{'native' if self.pipeline else 'universal'}-{self.target}"

    @property
    def settings(self) -> dict[str, str]:
        case = (CASES | TARGETS)[self.target]
        if not self.pipeline:
            return {"ep_size": str(case.degree)}
        return {
            "pipeline": self.pipeline,
            "stage": str(case.zero),
            "world_size": str(self.world // case.stages),
            "ep_size": str(case.degree),
        }


WAYS = (
    Way("pp-z1-bf16", "pp-z1-bf16", 4, "0,3"),
    Way("pp-z1-bf16", "pp3-z1-bf16", 3, "0,2,4"),
    Way("pp-z1-fp32", "pp-z1-fp32-ep1", 4, "0,3"),
    Way("pp-z1-fp32", "pp-z0-fp32", 4, "0,3"),
    Way("pp-z0-fp32", "pp-z0-fp32", 4, "0,3"),
    Way("pp-z0-fp32", "pp3-z0-fp32", 3, "0,2,4"),
    Way("pp-z1-bf16", "pp-z1-bf16", 4),
    Way("pp-z0-fp32", "pp-z1-fp32-ep1", 4),
)


@pytest.fixture(scope="module")
def resumed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stock DeepSpeed has after loading each way, all in one launch."""
    folder = tmp_path_factory.mktemp("resumed")
    loads: dict[int, list[str]] = {}
    for number, way in enumerate(WAYS):
        middle = folder / f"{way.source}.ucp"
        if not middle.exists():
            converted(made, way.source, middle)
        out = folder / f"{number}.{'native' if way.pipeline else 'uni'}"
        format_name = "deepspeed" if way.pipeline else "ds-universal"
        convert_checkpoint(
            middle, out, source_format="ucp", destination_format=format_name, settings=way.settings
        )
        loads.setdefault(way.world, []).append(f"load:{way.target}:{out}:{folder / str(number)}")
    ranks = [Ranks(listed, world) for world, listed in loads.items()]
    launch_in_turn("tests.frameworks_live.deepspeed.make_moe_parallel", ranks, timeout=200)
    return folder


def stages_of(folder: Path, degree: int, when: str = "tensors") -> dict[str, dict[str, torch.Tensor]]:
    """What all stages have, experts under their global names; equal wherever several have it."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for path in sorted(folder.glob("reference-*.pt")):
        rank: dict[str, Any] = torch.load(path, weights_only=True)
        for local, held in rank[when].items():
            known = found.setdefault(named(local, rank["expert_rank"], degree), {})
            for slot, tensor in held.items():
                assert torch.equal(known.setdefault(slot, tensor), tensor)
    return found


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stock_deepspeed_resumes_experts_in_other_pipelines(made: Path, resumed: Path, way: Way) -> None:
    result = resumed / str(WAYS.index(way))
    degree = (CASES | TARGETS)[way.target].degree
    wanted, found = stages_of(made / way.source, DEGREE), stages_of(result, degree)
    assert set(found) == set(wanted)
    assert sum(MARK in atom for atom in wanted) == 3 * EXPERTS * 3
    for atom, held in wanted.items():
        after = found[atom]
        for slot, tensor in held.items():
            # Without ZeRO, fp32 has no copy beside the value.
            other = after.get("master", after["value"]) if slot == "master" else after[slot]
            assert torch.equal(other, tensor), (atom, slot)
    one, other = (
        torch.load(path / "reference-0.pt", weights_only=True) for path in (made / way.source, result)
    )
    assert other["global_steps"] == one["global_steps"] == 3
    if way.source == way.target:
        # Nothing has changed: the run goes on as if it had never stopped, to the bit.
        assert other["losses"] == one["losses"]
        later, again = (stages_of(path, DEGREE, "later") for path in (made / way.source, result))
        for atom, held in later.items():
            assert all(torch.equal(again[atom][slot], tensor) for slot, tensor in held.items()), atom
    # DeepSpeed's gradients of experts grow with their degree: only the first step is that of every job.
    steps = 2 if degree == DEGREE else 1
    tolerance = 1e-5 if CASES[way.source].dtype == torch.float32 else 2e-2
    assert other["losses"][:steps] == pytest.approx(one["losses"][:steps], rel=tolerance)


def test_a_stage_without_experts_is_not_written(made: Path, tmp_path: Path) -> None:
    """The ranks of such a job would wait for each other: a stage makes groups of experts where it has some."""
    middle = converted(made, "pp-z1-bf16", tmp_path / "middle.ucp")
    settings = {"pipeline": "0,2,4,5", "ties": "embed:0,3", "world_size": "1", "ep_size": "1"}
    with pytest.raises(UcpError, match="stage 3 would have no experts") as refusal:
        convert_checkpoint(
            middle, tmp_path / "no", source_format="ucp", destination_format="deepspeed", settings=settings
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_experts_of_a_pipeline_go_out_to_a_plain_module(made: Path, tmp_path: Path) -> None:
    """DeepSpeed loads them by the names of the layers."""
    middle = converted(made, "pp-z1-bf16", tmp_path / "middle.ucp")
    settings = {"pipeline": "", "ep_size": "4", "world_size": "4"}
    out = tmp_path / "plain"
    convert_checkpoint(middle, out, source_format="ucp", destination_format="deepspeed", settings=settings)
    again = converted(made, "pp-z1-bf16", tmp_path / "again.ucp", out)
    with ucpformat.open(middle) as one, ucpformat.open(again) as other:
        assert set(one) == set(other)
        for atom, view in one.items():
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in other[atom].items()
            }, atom
