"""AutoTP under ZeRO, two by two ranks: shards are merged as DeepSpeed's own affine code rebuilds what it gathers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.checkpoint.affine import ParamAffineMap

import ucpformat
from tests.frameworks_live.deepspeed.make_tp import DEGREE, STAGES
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.processes import launch
from ucpformat.errors import UcpError
from ucpformat.frameworks.kinds import convert_checkpoint

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("autotp")
    launch("tests.frameworks_live.deepspeed.make_tp", [str(folder)], 2 * DEGREE, timeout=280)
    return folder


def references(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"reference-{rank}.pt", weights_only=False) for rank in range(DEGREE)]


@pytest.mark.parametrize("name", STAGES)
def test_every_tensor_is_rebuilt(made: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.ucp"
    convert_checkpoint(made / name / "ckpt", path, source_kind="deepspeed", destination_kind="ucp")
    assert ucpformat.validate(path) == []
    shards = references(made / name)
    maps = shards[0]["info"]["affine_map"]["params"]
    split = 0
    with ucpformat.open(path) as checkpoint:
        assert set(checkpoint) == set(shards[0]["tensors"])
        for parameter, held in shards[0]["tensors"].items():
            for slot, tensor in held.items():
                if slot == "master" and tensor.dtype == held["value"].dtype:
                    continue
                entry = maps.get(f"^{re.escape(parameter)}$")
                full = tensor
                if entry is not None:
                    parts = {rank: one["tensors"][parameter][slot] for rank, one in enumerate(shards)}
                    full = ParamAffineMap.from_dict(entry).rebuild(parts)
                    split += full.shape != tensor.shape
                found = checkpoint[parameter][slot].read()
                assert found.shape == tuple(full.shape)
                assert found.tobytes() == array_of(full).tobytes(), (parameter, slot)
        assert checkpoint["qkv.weight"]["value"].shape == (16, 12)
        assert checkpoint["down.weight"]["exp_avg"].shape == (12, 18)
        assert checkpoint.value("epoch") == 3
    assert split > 8


def test_shards_without_a_map_are_refused(made: Path, tmp_path: Path) -> None:
    """DeepSpeed's converter would take them to be split along dim 0."""
    folder = tmp_path / "ckpt"
    folder.mkdir()
    for file in (made / "tp-z1-bf16" / "ckpt" / "step3").iterdir():
        tree = torch.load(file, weights_only=False)
        if "model_states" in file.name:
            del tree["universal_checkpoint_info"]["affine_map"]
        torch.save(tree, folder / file.name)
    with pytest.raises(UcpError, match=r"differ|no affine map") as refusal:
        convert_checkpoint(folder, tmp_path / "out.ucp", source_kind="deepspeed", destination_kind="ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert "mp_rank_00" in refusal.value.at
