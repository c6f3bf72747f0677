"""From stock torch's checkpoints, and from other degrees, to DeepSpeed's files: what its loaders take, and what not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from ucpformat.conversion.convert import convert_checkpoint

MODEL = "mp_rank_00_model_states.pt"


@pytest.fixture(scope="module")
def from_dcp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a job of torch saved, with the states of its ranks' generators beside the model."""
    out = tmp_path_factory.mktemp("way_in") / "in.dcp"
    weights = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    states = {
        name: {"exp_avg": item + 1, "exp_avg_sq": item + 2, "step": torch.tensor(3.0)}
        for name, item in weights.items()
    }
    group = {"params": list(weights), "lr": 0.1}
    state = {
        "model": weights,
        "optim": {"state": states, "param_groups": [group]},
        "rng": {f"rank{rank}": torch.arange(5, dtype=torch.uint8) + rank for rank in range(2)},
        "epoch": 4,
    }
    with pytest.warns(UserWarning, match="torch.distributed is"):
        dcp_save(state, checkpoint_id=str(out), no_dist=True)
    return out


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
def test_what_lay_beside_the_model_is_no_part_of_the_module(
    from_dcp: Path, tmp_path: Path, stage: str
) -> None:
    """Stock `load_checkpoint` raises for names that its module has not."""
    settings = {"stage": stage, "world_size": "2", "buffers": ""}
    convert_checkpoint(
        from_dcp, tmp_path / "ds", source_format="dcp", destination_format="deepspeed", settings=settings
    )
    (tag,) = (entry for entry in (tmp_path / "ds").iterdir() if entry.is_dir())
    for path in tag.glob("*model_states.pt"):
        tree = torch.load(path, weights_only=True)
        assert set(tree["module"]) == {"w", "b"}
        assert tree["rng"]["rank1"].tolist() == [1, 2, 3, 4, 5]
        assert tree["epoch"] == 4
    convert_checkpoint(
        tmp_path / "ds", tmp_path / "b.ucp", source_format="deepspeed", destination_format="ucp"
    )
    with ucpformat.open(tmp_path / "b.ucp") as checkpoint:
        assert set(checkpoint) == {"w", "b"}
        held: Any = checkpoint.objects["rng"]
        assert np.frombuffer(held["rank1"].data, np.uint8).tolist() == [1, 2, 3, 4, 5]


def test_universal_files_of_it(from_dcp: Path, tmp_path: Path) -> None:
    convert_checkpoint(from_dcp, tmp_path / "ds", source_format="dcp", destination_format="ds-universal")
    tree = torch.load(tmp_path / "ds" / "universal" / MODEL, weights_only=True)
    assert set(tree["module"]) == {"w", "b"}
    assert set(tree["rng"]) == {"rank0", "rank1"}


INFO = {
    "universal_checkpoint_version": 0.2,
    "vocabulary_parameter_patterns": ["embed"],
    "original_vocab_size": 11,
    "affine_map": {"version": 1, "params": {}},
}


def test_what_the_client_said_for_universal_checkpoints_is_kept(tmp_path: Path) -> None:
    """But for how the shards of the saving job lay, which are not these."""
    values = {
        "universal_checkpoint_info": INFO,
        "ds_config": {"tensor_parallel": {"autotp_size": 2, "partition_config": {}}},
    }
    source = make_checkpoint(tmp_path / "a.ucp", values=values)
    for format_name, tag in (("ds-universal", "universal"), ("deepspeed", "global_step5")):
        convert_checkpoint(
            source, tmp_path / format_name, source_format="ucp", destination_format=format_name
        )
        tree = torch.load(tmp_path / format_name / tag / MODEL, weights_only=True)
        wanted = {key: value for key, value in INFO.items() if key != "affine_map"}
        assert tree["universal_checkpoint_info"] == wanted
        assert tree["ds_config"]["tensor_parallel"] == {"autotp_size": 1, "partition_config": {}}
        convert_checkpoint(
            tmp_path / format_name,
            tmp_path / f"{format_name}.ucp",
            source_format=format_name,
            destination_format="ucp",
        )


def test_what_stock_deepspeed_does_not_restore_is_said(tmp_path: Path) -> None:
    source = make_checkpoint(tmp_path / "a.ucp", states=("exp_avg", "exp_avg_sq", "max_exp_avg_sq"))
    report = convert_checkpoint(
        source, tmp_path / "ds", source_format="ucp", destination_format="ds-universal"
    )
    frozen, options, states = report.warnings
    assert frozen.startswith("3 frozen parameters and buffers (count, fixed, table) stay as the job begins")
    assert "the options of the first" in options
    assert "max_exp_avg_sq" in states
    shapes = {"w": (2, 3)}
    plain = make_checkpoint(tmp_path / "b.ucp", shapes=shapes, groups=[["w"]], aliases={})
    again = convert_checkpoint(
        plain, tmp_path / "two", source_format="ucp", destination_format="ds-universal"
    )
    assert len(again.warnings) == 1
