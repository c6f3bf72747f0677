"""Damaged, incomplete, mixed and malicious DeepSpeed checkpoints are refused, naming the file, and nothing runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.frameworks_live.deepspeed.conftest import Library
from tests.frameworks_live.harm import Harm, flip, is_found, poison, remove, replace_pickle, truncate
from tests.frameworks_live.mutations import is_read_or_refused
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

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
        convert_checkpoint(copy, tmp_path / "out.ucp", source_format="deepspeed", destination_format="ucp")
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
        convert_checkpoint(copy, tmp_path / "out.ucp", source_format="deepspeed", destination_format="ucp")


@pytest.mark.parametrize(
    ("tag", "code"), [("nothing", "UCP-E-SOURCE"), ("../elsewhere", "UCP-E-KEY"), ("", "UCP-E-KEY")]
)
def test_latest_leads_nowhere_else(library: Library, tag: str, code: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(library.get("z1-bf16", 2).path, copy)
    (copy / "latest").write_text(tag)
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(copy, tmp_path / "out.ucp", source_format="deepspeed", destination_format="ucp")
    assert refusal.value.code == code


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["z0-fp32", "z1-bf16", "z2-fp32", "z3-bf16"]))
def test_a_file_that_was_changed_is_read_or_refused(
    library: Library, tmp_path: Path, data: st.DataObject, name: str
) -> None:
    """One byte or one value of one file: nothing but an error of ours may come of it."""
    is_read_or_refused(library.get(name, 2).path, "deepspeed", tmp_path, data)


def changed_states(
    library: Library, scratch: Path, change: Callable[[dict[str, Any]], object], ranks: Sequence[int]
) -> UcpError:
    """The refusal where the states of the first flat group are others, of some ranks."""
    shutil.copytree(library.get("z1-bf16", 2).path, scratch / "copy")
    for rank in ranks:
        path = scratch / "copy" / TAG / OPTIM.replace("rank_1", f"rank_{rank}", 1)
        tree = torch.load(path, weights_only=False)
        change(tree["optimizer_state_dict"]["base_optimizer_state"]["state"][0])
        torch.save(tree, path)
    with pytest.raises(UcpError) as caught:
        convert_checkpoint(
            scratch / "copy", scratch / "out.ucp", source_format="deepspeed", destination_format="ucp"
        )
    assert not (scratch / "out.ucp" / "ucp.json").exists()
    assert caught.value.code == "UCP-E-SOURCE"
    assert "optim_states.pt" in caught.value.at
    return caught.value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held.update(odd="five"), "other optimizer states"),
        (lambda held: held.update(exp_avg="five"), "neither a number nor a flat tensor"),
        (lambda held: held.update(exp_avg=torch.ones(3)), "neither a number nor a flat tensor"),
        (lambda held: held.update(exp_avg=torch.tensor(5.0)), "neither a number nor a flat tensor"),
        (lambda held: held.update(exp_avg=5), "neither a number nor a flat tensor"),
        (lambda held: held.pop("exp_avg_sq"), "other optimizer states"),
    ],
)
def test_states_of_one_rank_that_do_not_fit_are_refused(
    library: Library, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    assert said in changed_states(library, tmp_path, change, [1]).message


def test_an_integer_of_too_many_bits_is_refused_before_anything_is_written(
    library: Library, tmp_path: Path
) -> None:
    refusal = changed_states(library, tmp_path, lambda held: held.update(count=1 << 70), [0, 1])
    assert "more than 64 bits" in refusal.message
