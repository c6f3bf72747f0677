"""From DeepSpeed's files to stock torch: no flag is needed, and weights are as exact as what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

import ucpformat
from tests.conversion.formats.deepspeed.made import SHAPES, make_checkpoint
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint
from ucpformat.errors import UcpError
from ucpformat.model.values import decode


@pytest.fixture(scope="module", params=["1", "3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What DeepSpeed saved in bf16 on two ranks, as ``ds``, and that it holds, as ``a.ucp``."""
    out = tmp_path_factory.mktemp("way_out")
    source = make_checkpoint(out / "a.ucp")
    settings = {"stage": request.param, "world_size": "2"}
    convert_checkpoint(
        source, out / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
    )
    return out


def written(source: Path, out: Path, to: str = "dcp", **settings: str) -> ConversionReport:
    format_name = "deepspeed" if source.name == "ds" else "ucp"
    return convert_checkpoint(
        source, out, source_format=format_name, destination_format=to, settings=settings
    )


def loaded(path: Path, kind: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights that a stock job gets, whose parameters have a data type."""
    model = {name: torch.zeros(shape, dtype=kind) for name, shape in SHAPES.items()}
    dcp_load({"model": model}, checkpoint_id=str(path), no_dist=True)
    return model


def exact(folder: Path, slot: str) -> dict[str, np.ndarray[Any, Any]]:
    with ucpformat.open(folder / "a.ucp") as checkpoint:
        return {name: checkpoint[name][slot].read().astype(np.float32) for name in SHAPES}


def is_equal(found: dict[str, torch.Tensor], wanted: dict[str, np.ndarray[Any, Any]]) -> bool:
    return all(np.array_equal(found[name].float().numpy(), array) for name, array in wanted.items())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_job_of_float32_gets_what_was_not_rounded(folder: Path, tmp_path: Path) -> None:
    report = written(folder / "ds", tmp_path / "out.dcp")
    told = {loss.what: loss for loss in report.dropped}
    assert told.keys() == {f"{name}/value" for name in SHAPES}
    assert all("slot=value" in loss.why and not loss.matters for loss in told.values())
    masters, values = exact(folder, "master"), exact(folder, "value")
    assert any(not np.array_equal(masters[name], values[name]) for name in SHAPES)
    assert is_equal(loaded(tmp_path / "out.dcp", torch.float32), masters)
    # A job of bfloat16 rounds as DeepSpeed did: it gets the same weights as before.
    assert is_equal(loaded(tmp_path / "out.dcp", torch.bfloat16), values)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_rounded_copy_is_written_if_asked_for(folder: Path, tmp_path: Path) -> None:
    report = written(folder / "ds", tmp_path / "out.dcp", slot="value")
    assert not report.dropped
    assert is_equal(loaded(tmp_path / "out.dcp", torch.float32), exact(folder, "value"))
    with pytest.raises(UcpError, match="none of value, master") as refusal:
        written(folder / "ds", tmp_path / "no.dcp", slot="exact")
    assert refusal.value.code == "UCP-E-MISMATCH"


def test_a_file_of_torch_holds_them_as_well(folder: Path, tmp_path: Path) -> None:
    written(folder / "ds", tmp_path / "out.pt", "torch-save")
    held = torch.load(tmp_path / "out.pt", weights_only=True)
    assert is_equal(held["model"], exact(folder, "master"))
    assert held["model"]["head.weight"].data_ptr() == held["model"]["embed.weight"].data_ptr()
    assert "master" not in held["optim"]["state"]["norm"]
    assert held["zero_optimizer"]["loss_scaler"]["class"] == "LossScaler"
    written(folder / "ds", tmp_path / "value.pt", "torch-save", slot="value")
    assert "master" in torch.load(tmp_path / "value.pt", weights_only=True)["optim"]["state"]["norm"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_states_that_a_torch_job_saved_keep_their_names(folder: Path, tmp_path: Path) -> None:
    """Its optimizer has a state called master, and asks for it."""
    written(folder / "a.ucp", tmp_path / "out.dcp")
    assert is_equal(loaded(tmp_path / "out.dcp", torch.float32), exact(folder, "value"))
    written(folder / "a.ucp", tmp_path / "master.dcp", slot="master")
    assert is_equal(loaded(tmp_path / "master.dcp", torch.float32), exact(folder, "master"))


def test_files_of_two_saves_are_found_though_one_is_not_written(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    convert_checkpoint(source, tmp_path / "ds", source_format="ucp", destination_format="deepspeed")
    path = tmp_path / "ds" / "global_step5" / "mp_rank_00_model_states.pt"
    tree = torch.load(path, weights_only=True)
    tree["module"]["norm"] += 1
    torch.save(tree, path)
    with pytest.raises(UcpError, match="the module's 'norm' is not the optimizer's copy") as refusal:
        written(tmp_path / "ds", tmp_path / "out.dcp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert not os.path.exists(tmp_path / "out.dcp" / ".metadata")


def test_the_loss_scaler_is_plain_data_on_the_way(folder: Path, tmp_path: Path) -> None:
    convert_checkpoint(folder / "ds", tmp_path / "b.ucp", source_format="deepspeed", destination_format="ucp")
    with ucpformat.open(tmp_path / "b.ucp") as checkpoint:
        kept: Any = decode(checkpoint.state.values["zero_optimizer"], at="zero_optimizer")
    assert kept["loss_scaler"] == {"class": "LossScaler", "state": {"cur_scale": 1.0, "dynamic": False}}
    again = tmp_path / "again"
    convert_checkpoint(tmp_path / "b.ucp", again, source_format="ucp", destination_format="deepspeed")
    name = "global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    assert b"DynamicLossScaler" not in (again / name).read_bytes()
    assert b"LossScaler" in (again / name).read_bytes()
