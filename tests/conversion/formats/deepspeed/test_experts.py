"""Mixtures of experts without DeepSpeed: files put together of three jobs' own; real ones in tests/frameworks_live."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint, saved_as
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError
from ucpformat.tensor_files.revive import tensor_from_bytes
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

DENSE = {"embed.weight": (5, 3), "norm": (3,)}
PREFIX = "moe.deepspeed_moe.experts.deepspeed_experts."
LOCAL = {f"{PREFIX}{number}.w": (3, 2 + number) for number in range(2)}


def exported(folder: Path, name: str, shapes: Mapping[str, tuple[int, ...]], degree: int, salt: int) -> Path:
    path = make_checkpoint(
        folder / f"{name}.ucp", shapes=shapes, groups=[list(shapes)], salts=dict.fromkeys(shapes, salt)
    )
    settings = {"stage": "1", "world_size": str(degree)}
    convert_checkpoint(
        path, folder / name, source_format="ucp", destination_format="deepspeed", settings=settings
    )
    return folder / name / "global_step5"


def loaded(folder: Path, rank: int) -> dict[str, Any]:
    """What a rank's optimizer file holds, DeepSpeed's own objects left out, which reading does not need."""
    name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    file = TorchFile(SourceFiles(folder), name)

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
        for number in range(2):
            name = "layer_0_expert_{}_mp_rank_00_model_states.pt"
            (weight,) = torch.load(half / name.format(number), weights_only=True).values()
            torch.save({f"{PREFIX}{2 * rank + number}.w": weight}, out / name.format(2 * rank + number))
    model["param_shapes"].append({name: torch.Size(shape) for name, shape in LOCAL.items()})
    model |= {"num_experts": [4], "ds_config": {"use_data_before_expert_parallelism": data_first}}
    torch.save({**model, **changes}, out / "mp_rank_00_model_states.pt")
    return out


def read(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_format="deepspeed", destination_format="ucp")
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


def same(one: Path, other: Path) -> None:
    with ucpformat.open(one) as first, ucpformat.open(other) as second:
        assert set(first) == set(second)
        for name, view in first.items():
            assert {slot: item.read().tobytes() for slot, item in view.items()} == {
                slot: item.read().tobytes() for slot, item in second[name].items()
            }, name
        groups = [found.state.optimizers["optim"].groups for found in (first, second)]
        assert [sorted(group.atoms) for group in groups[0]] == [sorted(group.atoms) for group in groups[1]]


@pytest.mark.parametrize(
    "settings",
    [
        {"ep_size": "2", "world_size": "2"},
        {"ep_size": "2", "world_size": "6", "stage": "2"},
        {"ep_size": "2", "world_size": "4", "data_before_experts": "true"},
        {"ep_size": "1", "world_size": "3"},
        {"ep_size": "2", "world_size": "4", "stage": "0"},
        {"ep_size": "2", "world_size": "4", "stage": "0", "data_before_experts": "true"},
    ],
    ids=str,
)
def test_experts_are_written_for_other_degrees(tmp_path: Path, settings: dict[str, str]) -> None:
    data_first = "data_before_experts" in settings
    path = read(saved(tmp_path, data_first=data_first), tmp_path / "out.ucp")
    convert_checkpoint(
        path, tmp_path / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
    )
    folder = tmp_path / "ds" / "global_step5"
    names = sorted(file.name for file in folder.iterdir())
    assert sum("_expert_" in name for name in names) == 4
    if settings.get("stage") == "0":
        assert [name for name in names if "optim" in name] == [
            f"expp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)
        ]
    else:
        assert sum("optim_states" in name for name in names) == int(settings["world_size"])
    same(path, read(folder, tmp_path / "again.ucp"))


@pytest.mark.parametrize("degree", ["1", "2"])
def test_universal_files_stack_the_experts_of_all_ranks(tmp_path: Path, degree: str) -> None:
    path = read(saved(tmp_path), tmp_path / "out.ucp")
    convert_checkpoint(
        path,
        tmp_path / "uni",
        source_format="ucp",
        destination_format="ds-universal",
        settings={"ep_size": degree},
    )
    zero = tmp_path / "uni" / "universal" / "zero"
    assert sum("deepspeed_experts" in entry.name for entry in zero.iterdir()) == 4 // int(degree)
    tree = torch.load(zero / f"{PREFIX}1.w" / "exp_avg.pt", weights_only=True)
    assert tree["param"].shape == (3 * int(degree), 3)
    assert tree.get("ep_num_experts") == (6 if degree == "2" else None)
    convert_checkpoint(
        tmp_path / "uni", tmp_path / "again.ucp", source_format="ds-universal", destination_format="ucp"
    )
    same(path, tmp_path / "again.ucp")
    for count in (5, "6", -6):
        torch.save(
            {**tree, "ep_num_experts": count, "is_expert_param": True}, zero / f"{PREFIX}1.w" / "fp32.pt"
        )
        with pytest.raises(UcpError, match="stack") as refusal:
            convert_checkpoint(
                tmp_path / "uni", tmp_path / "no.ucp", source_format="ds-universal", destination_format="ucp"
            )
        assert refusal.value.code == "UCP-E-SOURCE"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ep_size": "3"}, "does not divide the 4 experts"),
        ({"ep_size": "2", "world_size": "3"}, "does not divide the 3 ranks"),
        ({"ep_size": "4", "world_size": "4"}, "another shape"),
        ({"stage": "3"}, "no experts under ZeRO-3"),
    ],
)
def test_degrees_that_cannot_be(tmp_path: Path, settings: dict[str, str], text: str) -> None:
    path = read(saved(tmp_path), tmp_path / "out.ucp")
    with pytest.raises(UcpError, match=text) as refusal:
        convert_checkpoint(
            path, tmp_path / "ds", source_format="ucp", destination_format="deepspeed", settings=settings
        )
    assert refusal.value.code == "UCP-E-MISMATCH"


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
    saved_as(source / name.format(3), source / name.format(1))
    with pytest.raises(UcpError, match="not of this expert") as refusal:
        read(source, tmp_path / "out.ucp")
    assert refusal.value.at == name.format(1)
