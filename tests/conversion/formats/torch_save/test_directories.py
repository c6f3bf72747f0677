"""Directories in Accelerate's and Lightning's forms: what is refused, what is left out, what is carried."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from tests.conversion.damage import damaged, outcome, replaced
from tests.conversion.formats.torch_save.test_files import RAN, Malicious, training_state
from tests.conversion.jobs import whole
from ucpformat.conversion.convert import detect_format
from ucpformat.conversion.formats.torch_save.directories import detect, import_directory
from ucpformat.errors import UcpError


def saved(folder: Path, ranks: int = 2) -> Path:
    """What ``save_state`` writes; the live tests have it from Accelerate itself."""
    folder.mkdir()
    _, _, state = training_state()
    model = dict(state["model"])
    del model["2.weight"]
    save_file(model, folder / "model.safetensors")
    torch.save(state["optimizer"], folder / "optimizer.bin")
    torch.save(state["scheduler"], folder / "scheduler.bin")
    for rank in range(ranks):
        states = {
            "step": 1,
            "random_state": random.getstate(),
            "torch_manual_seed": torch.get_rng_state() + rank,
        }
        torch.save(states, folder / f"random_states_{rank}.pkl")
    torch.save({"counter": 7}, folder / "custom_checkpoint_0.pkl")
    return folder


def test_everything_is_carried(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a")
    assert detect_format(folder) == "accelerate"
    job = import_directory(folder)
    found = whole(job)
    assert found["1.bias", "value"].shape == (4,)
    assert found["optimizer.state.0.exp_avg", "value"].shape == (5, 4)
    first, second = (found[f"random_states_{rank}.torch_manual_seed", "value"] for rank in range(2))
    assert (first + 1 == second).all()
    assert job.state.values["custom_checkpoint_0.counter"] == 7
    assert "random_states_1.random_state" in job.state.values
    assert "scheduler.last_epoch" in job.state.values
    assert list(job.dropped) == []


def _torch(name: str, value: object) -> Callable[[Path], object]:
    return lambda folder: torch.save(value, folder / name)


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a rank is missing": (
        lambda f: (f / "random_states_0.pkl").unlink(),
        "UCP-E-SOURCE",
        "random_states_0.pkl",
    ),
    "no model": (lambda f: (f / "model.safetensors").unlink(), "UCP-E-SOURCE", ""),
    "two models": (
        _torch("pytorch_model.bin", {"1.bias": torch.ones(4)}),
        "UCP-E-SOURCE",
        "pytorch_model.bin",
    ),
    "code": (
        _torch("custom_checkpoint_0.pkl", {"x": Malicious()}),
        "UCP-E-PICKLE",
        "custom_checkpoint_0.pkl",
    ),
    "rank file": (
        _torch("pytorch_model_fsdp_0_rank0.bin", {}),
        "UCP-E-SOURCE",
        "pytorch_model_fsdp_0_rank0.bin",
    ),
    "exchanged": (
        lambda f: shutil.copyfile(f / "random_states_0.pkl", f / "random_states_1.pkl"),
        "UCP-E-SOURCE",
        "random_states_1.pkl",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_whole_is_refused_naming_the_file(tmp_path: Path, case: str) -> None:
    change, code, at = REFUSED[case]
    folder = saved(tmp_path / "a")
    change(folder)
    found = outcome(lambda: import_directory(folder))
    assert found is not None
    assert (found.code, found.at) == (code, at or (str(folder) if case == "no model" else at))
    assert RAN == []


def test_what_is_not_plain_data_is_carried_as_bytes_if_asked(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a")
    torch.save({"x": Malicious()}, folder / "custom_checkpoint_0.pkl")
    (folder / "config.json").write_text("{}")
    (folder / "notes.xyz").touch()
    (folder / "other").mkdir()
    job = import_directory(folder, foreign_objects="opaque")
    assert job.blobs["custom_checkpoint_0.pkl"][1] == (folder / "custom_checkpoint_0.pkl").read_bytes()
    assert job.blobs["config.json"][1] == b"{}"
    assert sorted(lost.what for lost in job.dropped) == ["files/notes.xyz", "files/other"]
    assert RAN == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_folders_of_dcp(tmp_path: Path) -> None:
    """FSDP under Accelerate, and Lightning's with the rest in a file beside the directory's own."""
    model, optimizer, _ = training_state()
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    weights, states = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
    folder = tmp_path / "fsdp"
    folder.mkdir()
    dcp_save({"model": weights}, checkpoint_id=folder / "pytorch_model_fsdp_0", no_dist=True)
    dcp_save({"optimizer": states}, checkpoint_id=folder / "optimizer_0", no_dist=True)
    torch.save({"step": 1}, folder / "random_states_0.pkl")
    assert detect_format(folder) == "accelerate"
    job = import_directory(folder)
    slots = {atom.name: set(atom.slots) for atom in job.atoms}
    assert slots["1.weight"] == {"value", "exp_avg", "exp_avg_sq", "step"}
    assert list(job.state.optimizers) == ["optimizer"]
    whole(job)

    lightning = tmp_path / "lightning"
    dcp_save({"model": weights, "optimizer_0": states}, checkpoint_id=lightning, no_dist=True)
    torch.save({"epoch": 3, "loops": {"a": [1, {"b": 2}]}}, lightning / "meta.pt")
    assert detect_format(lightning) == "accelerate"
    job = import_directory(lightning)
    assert job.state.values["epoch"] == 3
    assert "1.weight" in {atom.name for atom in job.atoms}
    whole(job)


@given(st.data())
def test_damaged_files_are_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = saved(tmp_path_factory.mktemp("damage") / "a")
    path = folder / data.draw(st.sampled_from(sorted(file.name for file in folder.iterdir())))
    replaced(path, data.draw(damaged(path.read_bytes())))
    found: UcpError | None = outcome(lambda: import_directory(folder))
    assert found is None or found.at == path.name
    detect(folder)


def test_nothing_is_there(tmp_path: Path) -> None:
    assert not detect(tmp_path)
    assert not detect(tmp_path / "none")
    state: Any = outcome(lambda: import_directory(tmp_path))
    assert state.code == "UCP-E-SOURCE"
