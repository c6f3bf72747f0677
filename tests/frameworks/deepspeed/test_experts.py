"""Mixtures of experts without DeepSpeed: files put together of three jobs' own; real ones in tests/frameworks_live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.frameworks.deepspeed.made import make_checkpoint
from ucpformat.errors import UcpError
from ucpformat.frameworks.deepspeed.torch_file import TorchFile
from ucpformat.frameworks.kinds.conversion import convert_checkpoint
from ucpformat.frameworks.torch_dcp.files import CheckpointFiles
from ucpformat.frameworks.torch_dcp.revive import tensor_from_bytes
from ucpformat.frameworks.torch_dcp.torch_zip import StoredTensor

DENSE = {"embed.weight": (5, 3), "norm": (3,)}
PREFIX = "moe.deepspeed_moe.experts.deepspeed_experts."
LOCAL = {f"{PREFIX}{number}.w": (3, 2 + number) for number in range(2)}


def exported(folder: Path, name: str, shapes: Mapping[str, tuple[int, ...]], degree: int, salt: int) -> Path:
    path = make_checkpoint(
        folder / f"{name}.ucp", shapes=shapes, groups=[list(shapes)], salts=dict.fromkeys(shapes, salt)
    )
    settings = {"stage": "1", "world_size": str(degree)}
    convert_checkpoint(
        path, folder / name, source_kind="ucp", destination_kind="deepspeed", settings=settings
    )
    return folder / name / "global_step5"


def loaded(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank's optimizer file holds, DeepSpeed's own objects left out, which reading does not need."""
    name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    file = TorchFile(CheckpointFiles(folder), name)

    def plain(value: Any) -> Any:
        if isinstance(value, StoredTensor):
            found = file.array(value)
            return tensor_from_bytes(np.frombuffer(found.data, np.uint8).copy(), found.dtype, found.shape)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    tree: Any = file.tree
    wanted = ("base_optimizer_state", "single_partition_of_fp32_groups", "partition_count")
    return {key: plain(tree["optimizer_state_dict"][key]) for key in wanted} | {"zero_stage": 1}


def saved(folder: Path, *, data_first: bool = False, **changes: Any) -> Path:
    """Four ranks, two of which share each half of four experts."""
    dense = exported(folder, "dense", DENSE, 4, 0)
    halves = [exported(folder, f"half{rank}", LOCAL, 2, rank + 1) for rank in range(2)]
    out = folder / "moe" / "tag"
    out.mkdir(parents=True)
    for rank in range(4):
        expert_rank, place = (rank // 2, rank % 2) if data_first else (rank % 2, rank // 2)
        tree, other = loaded(dense, rank), loaded(halves[expert_rank], place)
        state, more = tree["base_optimizer_state"], other["base_optimizer_state"]
        state["state"][1] = more["state"][0]
        state["param_groups"].append({**more["param_groups"][0], "params": [1], "moe": True})
        tree["single_partition_of_fp32_groups"] += other["single_partition_of_fp32_groups"]
        tree["partition_count"] = [4, 2]
        torch.save(
            {"optimizer_state_dict": tree}, out / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        )
    model = torch.load(dense / "mp_rank_00_model_states.pt", weights_only=True)
    for rank, half in enumerate(halves):
        module = torch.load(half / "mp_rank_00_model_states.pt", weights_only=True)["module"]
        for number in range(2):
            name = f"{PREFIX}{2 * rank + number}.w"
            file = out / f"layer_0_expert_{2 * rank + number}_mp_rank_00_model_states.pt"
            torch.save({name: module[f"{PREFIX}{number}.w"].clone()}, file)
    model["param_shapes"].append({name: torch.Size(shape) for name, shape in LOCAL.items()})
    model |= {"num_experts": [4], "ds_config": {"use_data_before_expert_parallelism": data_first}}
    torch.save({**model, **changes}, out / "mp_rank_00_model_states.pt")
    return out


def read(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_kind="deepspeed", destination_kind="ucp")
    return out


@pytest.mark.parametrize("data_first", [False, True])
def test_experts_have_their_global_numbers(tmp_path: Path, data_first: bool) -> None:
    path = read(saved(tmp_path, data_first=data_first), tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    with ucpformat.open(path) as found, ucpformat.open(tmp_path / "dense.ucp") as dense:
        for name in DENSE:
            for slot, item in dense[name].items():
                assert found[name][slot].read().tobytes() == item.read().tobytes()
        for rank in range(2):
            with ucpformat.open(tmp_path / f"half{rank}.ucp") as half:
                for number in range(2):
                    for slot, item in half[f"{PREFIX}{number}.w"].items():
                        other = found[f"{PREFIX}{2 * rank + number}.w"][slot]
                        assert other.read().tobytes() == item.read().tobytes(), (rank, number, slot)
        groups = found.state.optimizers["optim"].groups
        assert [len(group.atoms) for group in groups] == [2, 4]
    for kind in ("deepspeed", "ds-universal"):
        with pytest.raises(UcpError, match="mixture of experts"):
            convert_checkpoint(path, tmp_path / kind, source_kind="ucp", destination_kind=kind)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"num_experts": [5]}, "layer_0_expert_4_mp_rank_00_model_states.pt is missing"),
        ({"num_experts": [3]}, "two saves"),
        ({"num_experts": 4}, "does not list"),
        ({"ds_autoep_layers": [{}]}, "AutoEP"),
        ({"global_steps": -1, "param_shapes": [{}, {f"{PREFIX}0.w": torch.Size([3, 2])}]}, "0 elements"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UcpError, match=text) as refusal:
        read(saved(tmp_path, **changes), tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"


def test_the_file_of_another_expert_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    name = "layer_0_expert_{}_mp_rank_00_model_states.pt"
    (source / name.format(1)).write_bytes((source / name.format(3)).read_bytes())
    with pytest.raises(UcpError, match="not of this expert") as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.at == name.format(1)
