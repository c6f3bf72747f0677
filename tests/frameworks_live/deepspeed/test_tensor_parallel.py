"""AutoTP under ZeRO, two by two ranks: shards are merged as DeepSpeed's own affine code rebuilds what it gathers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.checkpoint.affine import ParamAffineMap

import ucpformat
from tests.frameworks_live.deepspeed.make_tp import DEGREE, STAGES
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.deepspeed.test_universal import stock_universal
from tests.patterns.documents import document
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("autotp")
    launch("tests.frameworks_live.deepspeed.make_tp", [str(folder)], 2 * DEGREE, timeout=280)
    return folder


def references(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"reference-{rank}.pt", weights_only=False) for rank in range(DEGREE)]


def check(path: Path, shards: list[dict[str, Any]]) -> None:
    """Every slot is what DeepSpeed's affine code rebuilds of the shards."""
    assert ucpformat.validate(path) == []
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
        assert checkpoint["fixed.weight"]["value"].shape == (14, 12)
        assert checkpoint["narrow.weight"]["value"].shape == (12, 14)
        assert checkpoint.objects["epoch"] == 3
    assert split > 8


@pytest.mark.parametrize("name", STAGES)
def test_every_tensor_is_rebuilt(made: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.ucp"
    convert_checkpoint(made / name / "ckpt", path, source_format="deepspeed", destination_format="ucp")
    check(path, references(made / name))


@pytest.mark.parametrize("name", ["tp-z1-bf16", "tp-z2-fp32"])
def test_universal_files_of_shards_come_in(made: Path, name: str, tmp_path: Path) -> None:
    """DeepSpeed's own converter merges what is trained; of what is frozen and split it keeps rank 0's shard alone."""
    source = stock_universal(made / name / "ckpt", tmp_path / "stock", "--no_strict")
    frozen = torch.load(source / "universal" / "zero" / "fixed.weight" / "fp32.pt", weights_only=True)
    assert frozen["param"].shape == (14 // DEGREE, 12)
    path = tmp_path / "out.ucp"
    convert_checkpoint(source, path, source_format="ds-universal", destination_format="ucp")
    check(path, references(made / name))


def test_frozen_shards_without_a_map_are_refused(made: Path, tmp_path: Path) -> None:
    source = stock_universal(made / "tp-z1-bf16" / "ckpt", tmp_path / "stock", "--no_strict")
    for path in (source / "universal").glob("*model_states.pt"):
        tree = torch.load(path, weights_only=False)
        del tree["universal_checkpoint_info"]["affine_map"]
        torch.save(tree, path)
    with pytest.raises(UcpError, match=r"fixed\.") as refusal:
        convert_checkpoint(
            source, tmp_path / "out.ucp", source_format="ds-universal", destination_format="ucp"
        )
    assert refusal.value.code == "UCP-E-SOURCE"
    three = stock_universal(made / "tp-z3-bf16" / "ckpt", tmp_path / "three", "--no_strict")
    with pytest.raises(UcpError, match="frozen parameters under ZeRO-3"):
        convert_checkpoint(three, tmp_path / "no.ucp", source_format="ds-universal", destination_format="ucp")


def without_maps(source: Path, folder: Path) -> Path:
    """The files as a DeepSpeed without affine maps, and Megatron-DeepSpeed, write them."""
    folder.mkdir()
    for file in source.iterdir():
        tree = torch.load(file, weights_only=False)
        if "model_states" in file.name:
            del tree["universal_checkpoint_info"]["affine_map"]
        torch.save(tree, folder / file.name)
    return folder


def test_shards_without_a_map_are_refused(made: Path, tmp_path: Path) -> None:
    """DeepSpeed's converter would take them to be split along dim 0."""
    folder = without_maps(made / "tp-z1-bf16" / "ckpt" / "step3", tmp_path / "ckpt")
    with pytest.raises(UcpError, match=r"differ|patterns=") as refusal:
        convert_checkpoint(folder, tmp_path / "out.ucp", source_format="deepspeed", destination_format="ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert "mp_rank_00" in refusal.value.at


def rules(*entries: tuple[list[str], list[dict[str, Any]]]) -> dict[str, Any]:
    listed = [{"match": match, "layout": {"mesh": 0, "steps": steps}} for match, steps in entries]
    return document(*listed, parameters=[{"name": "tp"}])


def split(dim: int) -> dict[str, Any]:
    return {"kind": "shard", "axis": "tp", "dim": dim, "rule": "even"}


FUSED = {"kind": "blocks", "dim": 0, "sizes": [8, 4, 4]}
PATTERNS = rules(
    (["qkv.*"], [FUSED, split(0), {"kind": "join", "dim": 0}]),
    (["up.*", "fixed.*"], [split(0)]),
    (["mix.weight", "down.weight", "narrow.weight"], [split(1)]),
    (["**"], []),
)


@pytest.mark.parametrize("name", STAGES)
def test_patterns_say_what_no_map_says(made: Path, name: str, tmp_path: Path) -> None:
    source = made / name / "ckpt" / "step3"
    convert_checkpoint(source, tmp_path / "maps.ucp", source_format="deepspeed", destination_format="ucp")
    (tmp_path / "rules.json").write_text(json.dumps(PATTERNS))
    convert_checkpoint(
        without_maps(source, tmp_path / "ckpt"),
        tmp_path / "patterns.ucp",
        source_format="deepspeed",
        destination_format="ucp",
        source_settings={"patterns": str(tmp_path / "rules.json")},
    )
    with ucpformat.open(tmp_path / "maps.ucp") as one, ucpformat.open(tmp_path / "patterns.ucp") as other:
        assert set(one) == set(other)
        for atom, view in one.items():
            for slot, item in view.items():
                found = other[atom][slot]
                assert found.shape == item.shape
                assert found.read().tobytes() == item.read().tobytes(), (atom, slot)


@pytest.mark.parametrize(
    ("patterns", "code"),
    [
        (rules((["**"], [])), "UCP-E-SOURCE"),
        (rules((["**"], [FUSED, split(0)])), "UCP-E-LAYOUT"),
        (rules((["qkv.*"], [split(0)])), "UCP-E-UNMATCHED"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(
    made: Path, patterns: dict[str, Any], code: str, tmp_path: Path
) -> None:
    folder = without_maps(made / "tp-z1-bf16" / "ckpt" / "step3", tmp_path / "ckpt")
    (tmp_path / "rules.json").write_text(json.dumps(patterns))
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(
            folder,
            tmp_path / "out.ucp",
            source_format="deepspeed",
            destination_format="ucp",
            source_settings={"patterns": str(tmp_path / "rules.json")},
        )
    assert refusal.value.code == code
