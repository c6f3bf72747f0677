"""Megatron-LM's ``mp_rank_*`` directories: every tensor is what lay in the memory of the ranks, merged by patterns."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ucpformat as ucp
from tests.frameworks_live.harm import Harm, flip, is_found, poison, remove, replace_pickle, truncate
from tests.frameworks_live.megatron import references
from tests.frameworks_live.megatron.cases import CLASSIC
from tests.frameworks_live.mutations import is_read_or_refused
from tests.frameworks_live.sweep import sweep
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.errors import UcpError
from ucpformat.model.values import decode

pytestmark = pytest.mark.distributed

ITERATION = "iter_0000007"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classic")
    launch("tests.frameworks_live.megatron.make_classic", [str(folder), *CLASSIC], 4, timeout=280)
    return folder


def converted(source: Path, out: Path, **settings: str) -> Path:
    assert detect_format(source) == "megatron-classic"
    convert_checkpoint(
        source, out, source_format="megatron-classic", destination_format="ucp", source_settings=settings
    )
    return out


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def referred(name: str) -> str:
    """What `references` calls an atom."""
    name = name.replace(".local_experts.", ".")
    for local, stored in references.RENAMED.items():
        if name.startswith("decoder.layers.") and name.split(".", 3)[3] == local:
            return name.removesuffix(local) + stored
    return name


@pytest.mark.parametrize("name", CLASSIC)
def test_every_tensor_is_what_the_ranks_hold(made: Path, name: str, tmp_path: Path) -> None:
    path = converted(made / name / "ckpt", tmp_path / "out.ucp")
    assert ucp.validate(path) == []
    case = CLASSIC[name]
    wanted = references.whole(references.ranks_of(made / name, "rank"))
    if case.tied:
        tied = wanted.pop("output_layer.weight")
        assert all(
            torch.equal(tied[slot], item) for slot, item in wanted["embedding.word_embeddings.weight"].items()
        )
    with ucp.open(path) as checkpoint:
        assert {referred(atom) for atom in checkpoint} == set(wanted)
        for atom, view in checkpoint.items():
            held = wanted[referred(atom)]
            slots = set(view) - {"step"}
            assert slots == set(held) - (set() if case.bf16 else {"master"}), atom
            for slot in slots:
                found = view[slot].read()
                assert found.shape == tuple(held[slot].shape), (atom, slot)
                assert found.tobytes() == array_of(held[slot]).tobytes(), (atom, slot)
        if case.tied:
            assert checkpoint["embedding.word_embeddings.weight"].atom.aliases == ("output_layer.weight",)
        groups = [group for optimizer in checkpoint.state.optimizers.values() for group in optimizer.groups]
        listed = [atom for group in groups for atom in group.atoms]
        assert len(listed) == len(set(listed))
        assert set(listed) == set(checkpoint)
        for group in groups:
            for atom in group.atoms:
                assert (len(checkpoint[atom]["value"].shape) == 1) == (
                    decode(group.options["wd_mult"], at="") == 0
                )
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 7
        assert checkpoint.objects["checkpoint_version"] == 3.0


def test_shards_that_no_pattern_explains_are_refused(made: Path, tmp_path: Path) -> None:
    """Patterns without gates would give a fused weight of the same shape: the caller's word counts."""
    with pytest.raises(UcpError) as refusal:
        converted(made / "tp2-dp2" / "ckpt", tmp_path / "out.ucp", patterns="llama")
    assert refusal.value.code == "UCP-E-UNMATCHED"


MODEL = "mp_rank_01/model_optim_rng.pt"
OPTIMIZER = "mp_rank_01/distrib_optim.pt"


@pytest.mark.parametrize(
    ("victim", "harm", "code"),
    [
        *[(victim, truncate, "UCP-E-SOURCE") for victim in (MODEL, OPTIMIZER)],
        *[(victim, flip, "UCP-E-SOURCE") for victim in (MODEL, OPTIMIZER)],
        *[(victim, remove, "UCP-E-SOURCE") for victim in (MODEL, OPTIMIZER)],
        *[(victim, poison, "UCP-E-PICKLE") for victim in (MODEL, OPTIMIZER)],
        *[(victim, replace_pickle, "UCP-E-SOURCE") for victim in (MODEL, OPTIMIZER)],
    ],
)
def test_harm_is_found(
    made: Path, victim: str, harm: Harm, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_found(
        made / "tp2-dp2" / "ckpt",
        "megatron-classic",
        f"{ITERATION}/{victim}",
        harm,
        code,
        tmp_path,
        monkeypatch,
        named=victim,
    )


def test_a_missing_rank_and_a_rank_of_another_save_are_refused(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "tp2-pp2-plain" / "ckpt", copy)
    shutil.rmtree(copy / ITERATION / "mp_rank_01_001")
    with pytest.raises(UcpError, match="mp_rank_01_001"):
        converted(copy, tmp_path / "out.ucp")
    shutil.copytree(
        made / "tp2-pp2-plain" / "ckpt" / ITERATION / "mp_rank_01_001", copy / ITERATION / "mp_rank_01_001"
    )
    path = copy / ITERATION / "mp_rank_01_001" / "model_optim_rng.pt"
    tree = torch.load(path, weights_only=False)
    torch.save({**tree, "iteration": 8}, path)
    with pytest.raises(UcpError, match="two saves") as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert "mp_rank_01_001" in refusal.value.at
    shutil.copy(made / "tp2-plain-bf16" / "ckpt" / ITERATION / MODEL, path)
    with pytest.raises(UcpError) as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize("text", ["../elsewhere", "x", ""])
def test_the_iteration_leads_nowhere_else(made: Path, text: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(made / "tp2-dp2" / "ckpt", copy)
    (copy / "latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(UcpError) as refusal:
        converted(copy, tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-KEY"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), name=st.sampled_from(["tp2-dp2", "tp2-plain-bf16", "pp2-ep2"]))
def test_a_file_that_was_changed_is_read_or_refused(
    made: Path, tmp_path: Path, data: st.DataObject, name: str
) -> None:
    """One byte or one value of one file: nothing but an error of ours may come of it."""
    is_read_or_refused(made / name / "ckpt", "megatron-classic", tmp_path, data)


@pytest.mark.parametrize("name", CLASSIC)
def test_no_file_is_lost_in_silence(made: Path, name: str, tmp_path: Path) -> None:
    """Where the two files of one rank contradict each other, either may be the one that is named."""
    found = sweep(
        made / name / "ckpt",
        tmp_path,
        known_as=lambda victim: victim.split("/")[-2] if "/" in victim else None,
    )
    found.check()
    print(found.counts)
