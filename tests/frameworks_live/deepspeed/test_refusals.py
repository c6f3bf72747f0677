"""Damaged, incomplete, mixed and malicious DeepSpeed checkpoints are refused, naming the file, and nothing runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.frameworks_live.deepspeed.conftest import Library
from tests.frameworks_live.harm import Harm, flip, is_found, poison, remove, replace_pickle, truncate
from ucpformat.errors import UcpError
from ucpformat.frameworks.kinds.conversion import convert_checkpoint

pytestmark = pytest.mark.distributed

TAG = "global_step3"
OPTIM = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize(
    ("name", "victim", "harm", "code"),
    [
        ("z1-bf16", OPTIM, truncate, "UCP-E-SOURCE"),
        ("z1-bf16", OPTIM, flip, "UCP-E-SOURCE"),
        ("z1-bf16", OPTIM, remove, "UCP-E-SOURCE"),
        ("z1-bf16", OPTIM, poison, "UCP-E-PICKLE"),
        ("z1-bf16", OPTIM, replace_pickle, "UCP-E-SOURCE"),
        ("z1-bf16", "mp_rank_00_model_states.pt", poison, "UCP-E-PICKLE"),
        ("z1-bf16", "mp_rank_00_model_states.pt", truncate, "UCP-E-SOURCE"),
        ("z1-bf16", "mp_rank_00_model_states.pt", flip, "UCP-E-SOURCE"),
        ("z3-bf16", OPTIM, truncate, "UCP-E-SOURCE"),
        ("z3-bf16", OPTIM, flip, "UCP-E-SOURCE"),
        ("z3-bf16", OPTIM, remove, "UCP-E-SOURCE"),
        ("z3-bf16", "zero_pp_rank_1_mp_rank_00_model_states.pt", remove, "UCP-E-SOURCE"),
        ("z3-bf16", "zero_pp_rank_1_mp_rank_00_model_states.pt", poison, "UCP-E-PICKLE"),
        ("z3-bf16", "zero_pp_rank_1_mp_rank_00_model_states.pt", truncate, "UCP-E-SOURCE"),
    ],
)
def test_harm_is_found(
    library: Library,
    name: str,
    victim: str,
    harm: Harm,
    code: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_found(
        library.get(name, 2).path,
        "deepspeed",
        f"{TAG}/{victim}",
        harm,
        code,
        tmp_path,
        monkeypatch,
        named=victim.removeprefix("bf16_"),
    )


@pytest.mark.parametrize(
    ("name", "other", "victim"),
    [
        ("z1-bf16", "z1-plain-order", "mp_rank_00_model_states.pt"),
        ("z1-bf16", "z2-bf16", OPTIM),
        ("z1-bf16", "z1-round-robin", "mp_rank_00_model_states.pt"),
        ("z3-bf16", "z3-sub-groups", OPTIM),
        ("z1-fp32", "z2-fp32", "mp_rank_00_model_states.pt"),
    ],
)
def test_files_of_two_saves_are_refused(
    library: Library, name: str, other: str, victim: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(library.get(name, 2).path, copy)
    shutil.copy(library.get(other, 2).path / TAG / victim, copy / TAG / victim)
    with pytest.raises(UcpError, match=r"states\.pt") as refusal:
        convert_checkpoint(copy, tmp_path / "out.ucp", source_kind="deepspeed", destination_kind="ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def test_a_later_step_of_the_same_run_does_not_mix(library: Library, tmp_path: Path) -> None:
    """The step in the optimizer's file of one rank tells."""
    copy = tmp_path / "copy"
    shutil.copytree(library.get("z1-bf16", 2).path, copy)
    path = copy / TAG / OPTIM
    tree = torch.load(path, weights_only=False)
    for state in tree["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
        state["step"] += 1
    torch.save(tree, path)
    with pytest.raises(UcpError, match=OPTIM):
        convert_checkpoint(copy, tmp_path / "out.ucp", source_kind="deepspeed", destination_kind="ucp")


@pytest.mark.parametrize(
    ("tag", "code"), [("nothing", "UCP-E-SOURCE"), ("../elsewhere", "UCP-E-KEY"), ("", "UCP-E-KEY")]
)
def test_latest_leads_nowhere_else(library: Library, tag: str, code: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(library.get("z1-bf16", 2).path, copy)
    (copy / "latest").write_text(tag)
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(copy, tmp_path / "out.ucp", source_kind="deepspeed", destination_kind="ucp")
    assert refusal.value.code == code
