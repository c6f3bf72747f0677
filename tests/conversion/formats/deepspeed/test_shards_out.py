"""Shards of tensor-parallel ranks: written, and merged again by the affine maps beside them (see `shards_out`)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.conversion.formats.deepspeed.made import make_checkpoint
from tests.conversion.formats.deepspeed.test_round_trip import assert_equal, back, plain, to_deepspeed
from tests.patterns.documents import document
from ucpformat.errors import UcpError


def split(dim: int, rule: str = "balanced") -> dict[str, Any]:
    return {"kind": "shard", "axis": "tp", "dim": dim, "rule": rule}


FUSED = [{"kind": "blocks", "dim": 0, "sizes": [7, 4]}, split(0), {"kind": "join", "dim": 0}]
SPLIT = [(["embed.weight"], FUSED), (["up.weight"], [split(1)]), (["up.bias"], [split(0)]), (["**"], [])]


def patterns(path: Path, entries: Any) -> str:
    rules = [
        {"match": match, "layout": None if steps is None else {"mesh": 0, "steps": steps}}
        for match, steps in entries
    ]
    path.write_text(json.dumps(document(*rules, parameters=[{"name": "tp"}])))
    return str(path)


@pytest.mark.parametrize("stage", ["0", "1", "2"])
@pytest.mark.parametrize("degree", [2, 3, 4])
@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_shards_come_back(tmp_path: Path, stage: str, degree: int, kind: str) -> None:
    source = (
        plain(tmp_path / "a.ucp", kind) if stage == "0" else make_checkpoint(tmp_path / "a.ucp", kind=kind)
    )
    rules = patterns(tmp_path / "rules.json", SPLIT)
    middle = to_deepspeed(
        source, tmp_path / "ds", stage=stage, world_size="2", tp_degree=str(degree), patterns=rules
    )
    names = os.listdir(middle / "global_step5")
    assert sum("model_states" in name for name in names) == degree
    assert sum("optim_states" in name for name in names) == (0 if stage == "0" else 2 * degree)
    with ucpformat.open(source) as checkpoint:
        whole = checkpoint["embed.weight"]["value"].read().astype(np.float32)
    fused = [np.array_split(part, degree) for part in (whole[:7], whole[7:])]
    for rank in range(degree):
        file = middle / "global_step5" / f"mp_rank_{rank:02d}_model_states.pt"
        tree = torch.load(file, weights_only=True)
        assert tree["mp_world_size"] == tree["checkpoint_parallel_dimensions"]["tp_degree"] == degree
        wanted = np.concatenate([fused[0][rank], fused[1][rank]])
        assert np.array_equal(tree["module"]["embed.weight"].float().numpy(), wanted)
        assert tree["module"]["norm"].shape == (4,)
    assert_equal(source, back(middle, tmp_path / "b.ucp"))
    # Of what was saved with maps, the same degree needs no patterns, whole tensors need nothing.
    again = to_deepspeed(
        tmp_path / "b.ucp", tmp_path / "ds2", stage=stage, world_size="3", tp_degree=str(degree)
    )
    assert_equal(source, back(again, tmp_path / "c.ucp"))
    for other in (degree + 1, degree - 1):
        if other > 1:
            with pytest.raises(UcpError, match="set patterns=") as refusal:
                to_deepspeed(tmp_path / "b.ucp", tmp_path / "no", stage=stage, tp_degree=str(other))
            assert refusal.value.code == "UCP-E-MISMATCH"


@pytest.mark.parametrize(
    ("entries", "settings", "text"),
    [
        (None, {}, "nothing says how"),
        (SPLIT, {"stage": "3"}, "ZeRO-0 to 2"),
        ([(["**"], None)], {}, "no rank holds"),
        ([(["norm"], [{"kind": "scale", "exponent": -1}]), (["**"], [])], {}, "scaled"),
        ([(["norm"], [{"kind": "pad", "dim": 0, "to": 5}]), (["**"], [])], {}, "is padded"),
        ([(["embed.weight"], [{"kind": "permute", "order": [1, 0]}]), (["**"], [])], {}, "another order"),
        ([(["norm"], [{"kind": "view", "shape": [2, 2]}]), (["**"], [])], {}, "along the dims"),
    ],
)
def test_what_cannot_be_split_is_refused(
    tmp_path: Path, entries: Any, settings: dict[str, str], text: str
) -> None:
    source = make_checkpoint(tmp_path / "a.ucp")
    chosen = {"stage": "1", "tp_degree": "2", **settings}
    if entries is not None:
        chosen["patterns"] = patterns(tmp_path / "rules.json", entries)
    with pytest.raises(UcpError, match=text) as refusal:
        to_deepspeed(source, tmp_path / "no", **chosen)
    assert refusal.value.code == "UCP-E-MISMATCH"
    assert not (tmp_path / "no").exists()
