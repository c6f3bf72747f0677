"""Directories of DeepSpeed that contradict themselves; tests/frameworks_live changes the files that it wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.errors import UcpError

STAGES = ("1", "3")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is changed: a directory of each stage, of two ranks."""
    folder = tmp_path_factory.mktemp("refusals")
    source = make_checkpoint(folder / "a.ucp", kind="float32")
    for stage in STAGES:
        chosen = {"stage": stage, "world_size": "2"}
        convert_checkpoint(
            source, folder / stage, source_format="ucp", destination_format="deepspeed", settings=chosen
        )
    return folder


def copied(saved: Path, stage: str, scratch: Path) -> Path:
    return Path(shutil.copytree(saved / stage, scratch / "copy")) / "global_step5"


def refusal(tag: Path) -> UcpError:
    with pytest.raises(UcpError) as caught:
        convert_checkpoint(
            tag, tag.parent.parent / "out.ucp", source_format="deepspeed", destination_format="ucp"
        )
    assert not (tag.parent.parent / "out.ucp" / "ucp.json").exists()
    return caught.value


@pytest.mark.parametrize(
    ("stage", "name", "twin"),
    [
        ("1", "mp_rank_00_model_states.pt", "mp_rank_000_model_states.pt"),
        ("3", "zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_00_mp_rank_00_model_states.pt"),
        ("1", "zero_pp_rank_1_mp_rank_00_optim_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ],
)
def test_two_files_of_one_rank_are_refused(
    saved: Path, tmp_path: Path, stage: str, name: str, twin: str
) -> None:
    tag = copied(saved, stage, tmp_path)
    shutil.copy(tag / name, tag / twin)
    problem = refusal(tag)
    assert problem.code == "UCP-E-SOURCE"
    assert name in str(problem)
    assert twin in str(problem)
    assert "keep those of one" in problem.message


def test_the_number_of_an_expert_has_few_digits() -> None:
    """Python refuses to make a number of very many."""
    prefix, suffix = "a.deepspeed_moe.experts.deepspeed_experts.", ".w"
    assert expert_name(f"{prefix}7{suffix}") == (prefix, 7, suffix)
    assert expert_name(f"{prefix}{'9' * 5000}{suffix}") is None
