"""Mixtures of experts, two expert-parallel ranks by two: every expert is what the ranks that have it gather."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ucpformat
from tests.conversion.formats.deepspeed.made import saved_as
from tests.frameworks_live.deepspeed.jobs import converted, made_by
from tests.frameworks_live.deepspeed.make_moe import EXPERTS, MOES, TARGETS
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.harm import flip, poison, remove, truncate
from tests.frameworks_live.mutations import is_read_or_refused
from tests.processes import Ranks, launch_in_turn
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed

MARK = "deepspeed_experts."


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_by("make_moe", MOES, tmp_path_factory)


def named(local: str, rank: int, degree: int = 2) -> str:
    """The global name of a rank's parameter."""
    before, mark, rest = local.partition(MARK)
    if not mark:
        return local
    number, _, key = rest.partition(".")
    return f"{before}{mark}{rank * EXPERTS // degree + int(number)}.{key}"


@pytest.mark.parametrize("name", MOES)
def test_every_expert_is_what_its_ranks_gather(made: Path, name: str, tmp_path: Path) -> None:
    path = converted(made / name / "ckpt", tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    expert_ranks, seen = [], set()
    with ucpformat.open(path) as checkpoint:
        for rank in range(4):
            reference = torch.load(made / name / f"reference-{rank}.pt", weights_only=True)
            expert_ranks.append(reference["expert_rank"])
            for local, held in reference["tensors"].items():
                atom = named(local, reference["expert_rank"])
                seen.add(atom)
                has_master = MOES[name].dtype == torch.bfloat16
                slots = {slot for slot in held if slot != "master" or has_master}
                assert set(checkpoint[atom]) - {"step"} == slots, atom
                for slot in slots:
                    found = checkpoint[atom][slot].read()
                    assert found.tobytes() == array_of(held[slot]).tobytes(), (rank, atom, slot)
                if "exp_avg" in slots:
                    assert checkpoint[atom]["step"].read() == 3
        assert expert_ranks == ([0, 0, 1, 1] if MOES[name].data_first else [0, 1, 0, 1])
        assert set(checkpoint) == seen
        assert sum(MARK in atom for atom in seen) == 2 * EXPERTS * 3
        groups = checkpoint.state.optimizers["optim"].groups
        assert [group.options["name"] for group in groups] == [
            "matrices",
            "vectors",
            "ep_size_2",
            "ep_size_2",
        ]
        assert [group.options["lr"] for group in groups] == [0.01, 0.02, 0.01, 0.02]
        assert {atom for group in groups for atom in group.atoms} == seen - {"table"}
        assert all((MARK in atom) == ("moe" in group.options) for group in groups for atom in group.atoms)
        assert checkpoint.objects["num_experts"] == [EXPERTS, EXPERTS]


EXPERT = "layer_1_expert_2_mp_rank_00_model_states.pt"


@pytest.mark.parametrize(
    ("name", "victim", "harm", "code"),
    [
        ("moe-z1-bf16", EXPERT, truncate, "UCP-E-SOURCE"),
        ("moe-z2-fp32", EXPERT, flip, "UCP-E-SOURCE"),
        ("moe-z1-bf16", EXPERT, poison, "UCP-E-PICKLE"),
        ("moe-z1-bf16", EXPERT, remove, "UCP-E-SOURCE"),
        ("moe-z1-bf16", "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt", remove, "UCP-E-SOURCE"),
        ("moe-z1-bf16", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", flip, "UCP-E-SOURCE"),
        ("moe-z0-fp32", "expp_rank_1_mp_rank_00_optim_states.pt", poison, "UCP-E-PICKLE"),
        ("moe-z0-fp32", "expp_rank_1_mp_rank_00_optim_states.pt", flip, "UCP-E-SOURCE"),
        ("moe-z0-fp32", "expp_rank_1_mp_rank_00_optim_states.pt", truncate, "UCP-E-SOURCE"),
    ],
)
def test_harm_is_found(
    made: Path,
    name: str,
    victim: str,
    harm: Callable[[Path], None],
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UCP_EVIL", str(tmp_path / "evil"))
    copy = tmp_path / "copy"
    shutil.copytree(made / name / "ckpt", copy)
    harm(copy / "step3" / victim)
    with pytest.raises(UcpError) as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert refusal.value.code == code
    assert victim.removeprefix("bf16_") in str(refusal.value)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("missing", [0, 1])
def test_a_missing_rank_of_experts_is_refused(made: Path, missing: int, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "moe-z0-fp32" / "ckpt", copy)
    remove(copy / "step3" / f"expp_rank_{missing}_mp_rank_00_optim_states.pt")
    with pytest.raises(UcpError, match=rf"expp_rank_{missing}_mp_rank_00_optim_states\.pt") as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def test_experts_of_two_saves_are_refused(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "moe-z1-bf16" / "ckpt", copy)
    tree = torch.load(copy / "step3" / EXPERT, weights_only=True)
    torch.save({name: tensor + 1 for name, tensor in tree.items()}, copy / "step3" / EXPERT)
    with pytest.raises(UcpError, match="two saves"):
        converted(copy, tmp_path / "out.ucp")
    swapped = tmp_path / "swapped"
    shutil.copytree(made / "moe-z1-bf16" / "ckpt", swapped)
    other = swapped / "step3" / EXPERT.replace("expert_2", "expert_3")
    shutil.copy(other, swapped / "step3" / EXPERT)
    with pytest.raises(UcpError, match=r"it was saved as layer_\d+_expert_3_.*exchanged") as refusal:
        converted(swapped, tmp_path / "no.ucp")
    assert refusal.value.at == EXPERT
    saved_as(other, swapped / "step3" / EXPERT)
    with pytest.raises(UcpError, match="not of this expert") as refusal:
        converted(swapped, tmp_path / "swapped.ucp")
    assert refusal.value.at == EXPERT


@dataclass(frozen=True)
class Way:
    """A resumption: of what, as what, on how many ranks."""

    source: str
    target: str
    world: int
    is_universal: bool = False

    def __str__(self) -> str:
        return f"{self.source}-{'universal' if self.is_universal else 'native'}-{self.target}-{self.world}"

    @property
    def settings(self) -> dict[str, str]:
        case = (MOES | TARGETS)[self.target]
        if self.is_universal:
            return {"ep_size": str(case.degree)}
        return {
            "ep_size": str(case.degree),
            "stage": str(case.stage),
            "world_size": str(self.world),
            "data_before_experts": str(case.data_first).lower(),
        }


WAYS = (
    Way("moe-z1-bf16", "moe-z1-bf16-ep1", 3),
    Way("moe-z1-bf16", "moe-z2-bf16-ep4", 4),
    Way("moe-z2-data-first", "moe-z2-data-first", 4),
    Way("moe-z2-data-first", "moe-z1-bf16", 2),
    Way("moe-z1-bf16", "moe-z1-bf16-data-first-ep2", 4),
    Way("moe-z2-fp32", "moe-z1-fp32-ep2", 2),
    Way("moe-z0-fp32", "moe-z0-fp32", 2),
    Way("moe-z2-fp32", "moe-z0-fp32-ep1", 3),
    Way("moe-z0-fp32", "moe-z2-fp32", 4),
    Way("moe-z1-bf16", "moe-z1-bf16", 2, is_universal=True),
    Way("moe-z1-bf16", "moe-z2-bf16-ep4", 4, is_universal=True),
    Way("moe-z2-fp32", "moe-z1-bf16-ep1", 3, is_universal=True),
)


@pytest.fixture(scope="module")
def resumed(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stock DeepSpeed has after loading each way, all in one launch."""
    folder = tmp_path_factory.mktemp("resumed")
    jobs: dict[int, list[str]] = {}
    for number, way in enumerate(WAYS):
        middle = folder / f"{way.source}.ucp"
        if not middle.exists():
            converted(made / way.source / "ckpt", middle)
        out = folder / f"{number}.{'uni' if way.is_universal else 'native'}"
        format_name = "ds-universal" if way.is_universal else "deepspeed"
        convert_checkpoint(
            middle, out, source_format="ucp", destination_format=format_name, settings=way.settings
        )
        jobs.setdefault(way.world, []).append(f"load:{way.target}:{out}:{folder / str(number)}")
    launch_in_turn(
        "tests.frameworks_live.deepspeed.make_moe",
        [Ranks(listed, world) for world, listed in jobs.items()],
        timeout=560,
    )
    return folder


def gathered(folder: Path, degree: int) -> tuple[dict[str, dict[str, torch.Tensor]], dict[str, Any]]:
    """All experts under their global names, and what rank 0 said."""
    ranks = [torch.load(path, weights_only=True) for path in sorted(folder.glob("reference-*.pt"))]
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for rank in ranks:
        for local, held in rank["tensors"].items():
            for slot, tensor in held.items():
                known = tensors.setdefault(named(local, rank["expert_rank"], degree), {})
                assert torch.equal(known.setdefault(slot, tensor), tensor)
    return tensors, ranks[0]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stock_deepspeed_resumes_under_other_degrees(made: Path, resumed: Path, way: Way) -> None:
    cases = MOES | TARGETS
    wanted, reference = gathered(made / way.source, cases[way.source].degree)
    found, other = gathered(resumed / str(WAYS.index(way)), cases[way.target].degree)
    assert set(found) == set(wanted)
    assert sum(MARK in name for name in wanted) == 2 * EXPERTS * 3
    same_type = cases[way.source].dtype == cases[way.target].dtype
    for name, held in wanted.items():
        if way.is_universal and "exp_avg" not in held:
            continue  # stock DeepSpeed does not restore buffers from universal files
        after = found[name]
        for slot, tensor in held.items():
            if slot == "value" and not same_type:
                tensor = tensor.to(after["value"].dtype)
            there = after.get("master", after["value"]) if slot == "master" else after[slot]
            assert torch.equal(there, tensor), (name, slot)
    assert other["global_steps"] == reference["global_steps"] == 3
    assert [group["lr"] for group in other["options"]] == [group["lr"] for group in reference["options"]]
    assert {group["name"] for group in other["options"] if group.get("moe")} == {
        f"ep_size_{cases[way.target].degree}"
    }
    tolerance = 1e-5 if cases[way.target].dtype == torch.float32 else 2e-2
    # DeepSpeed's gradients of experts grow with their degree: only the first step is that of every job.
    steps = 2 if cases[way.source].degree == cases[way.target].degree else 1
    assert other["losses"][:steps] == pytest.approx(reference["losses"][:steps], rel=tolerance)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ep_size": "3", "world_size": "3"}, "does not divide the 4 experts"),
        ({"ep_size": "4", "world_size": "6"}, "does not divide the 6 ranks"),
        ({"stage": "3"}, "no experts under ZeRO-3"),
    ],
)
def test_degrees_that_cannot_be_are_refused(
    made: Path, settings: dict[str, str], text: str, tmp_path: Path
) -> None:
    path = converted(made / "moe-z1-bf16" / "ckpt", tmp_path / "out.ucp")
    with pytest.raises(UcpError, match=text) as refusal:
        convert_checkpoint(
            path, tmp_path / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["moe-z1-bf16", "moe-z0-fp32"]))
def test_a_file_that_was_changed_is_read_or_refused(
    made: Path, tmp_path: Path, data: st.DataObject, name: str
) -> None:
    """One byte or one value of one file: nothing but an error of ours may come of it."""
    is_read_or_refused(made / name / "ckpt", "deepspeed", tmp_path, data)
