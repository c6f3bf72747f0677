"""Shards of tensor-parallel ranks go out: stock AutoTP resumes them, under the degree of the save and under another."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.checkpoint.affine import ParamAffineMap

import ucpformat
from tests.frameworks_live.deepspeed.make_tp import DEGREE, STAGES
from tests.frameworks_live.deepspeed.test_tensor_parallel import PATTERNS, rules
from tests.processes import Ranks, launch, launch_in_turn
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

pytestmark = pytest.mark.distributed
WORKER = "tests.frameworks_live.deepspeed.make_tp"


@dataclass(frozen=True)
class Way:
    """A resumption: of what, as what, on how many tensor-parallel ranks and ranks in all."""

    source: str
    target: str
    degree: int
    world: int
    has_patterns: bool = True

    def __str__(self) -> str:
        return f"{self.source}-{self.target}-tp{self.degree}-of-{self.world}"

    def settings(self, folder: Path) -> dict[str, str]:
        found = {
            "stage": str(STAGES[self.target][0]),
            "tp_degree": str(self.degree),
            "world_size": str(self.world // self.degree),
        }
        return found | ({"patterns": str(folder / "rules.json")} if self.has_patterns else {})


WAYS = (
    Way("tp-z1-bf16", "tp-z1-bf16", 2, 4, has_patterns=False),
    Way("tp-z1-bf16", "tp-z1-bf16", 2, 2),
    Way("tp-z2-fp32", "tp-z2-fp32", 4, 4),
    Way("tp-z0-fp32", "tp-z0-fp32", 2, 4),
    Way("tp-z0-fp32", "tp-z0-fp32", 4, 4),
)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What AutoTP saved, what was made of it, and what stock DeepSpeed has of that, by way."""
    folder = tmp_path_factory.mktemp("shards")
    # AutoTP gives the first ranks a row more where a degree does not divide.
    (folder / "rules.json").write_text(json.dumps(PATTERNS).replace('"even"', '"balanced"'))
    launch(WORKER, [str(folder)], 2 * DEGREE, timeout=200)
    # A process of DeepSpeed's knows one degree, which it keeps in globals.
    loads: dict[tuple[int, int], list[str]] = {}
    for number, way in enumerate(WAYS):
        middle, out = folder / f"{way.source}.ucp", folder / f"{number}.native"
        if not middle.exists():
            source = folder / way.source / "ckpt"
            convert_checkpoint(source, middle, source_format="deepspeed", destination_format="ucp")
        settings = way.settings(folder)
        convert_checkpoint(
            middle, out, source_format="ucp", destination_format="deepspeed", settings=settings
        )
        job = f"load:{way.target}:{way.degree}:{out}:{folder / str(number)}"
        loads.setdefault((way.world, way.degree), []).append(job)
    launch_in_turn(WORKER, [Ranks(jobs, world) for (world, _), jobs in loads.items()], timeout=200)
    return folder


def whole(folder: Path, when: str = "tensors") -> tuple[dict[str, dict[str, torch.Tensor]], list[float]]:
    """Everything, rebuilt by DeepSpeed's own affine code of what the ranks hold, and the losses of the first."""
    shards: list[dict[str, Any]] = [
        torch.load(path, weights_only=False) for path in sorted(folder.glob("reference-*.pt"))
    ]
    maps = shards[0]["info"]["affine_map"]["params"]
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, held in shards[0][when].items():
        entry = maps.get(f"^{re.escape(name)}$")
        for slot, tensor in held.items():
            parts = {rank: shard[when][name][slot] for rank, shard in enumerate(shards)}
            full = tensor if entry is None else ParamAffineMap.from_dict(entry).rebuild(parts)
            found.setdefault(name, {})[slot] = full
    return found, shards[0]["losses"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_stock_deepspeed_resumes_shards(resumed: Path, way: Way) -> None:
    wanted, losses = whole(resumed / way.source)
    found, after = whole(resumed / str(WAYS.index(way)))
    assert set(found) == set(wanted)
    for name, held in wanted.items():
        for slot, tensor in held.items():
            assert torch.equal(found[name][slot], tensor), (name, slot)
    if way.source == way.target and (way.degree, way.world) == (DEGREE, 2 * DEGREE):
        # Nothing has changed: the run goes on as if it had never stopped, to the bit.
        assert after == losses
        later, _ = whole(resumed / way.source, "later")
        again, _ = whole(resumed / str(WAYS.index(way)), "later")
        for name, held in later.items():
            assert all(torch.equal(again[name][slot], tensor) for slot, tensor in held.items()), name
    assert after == pytest.approx(losses, rel=2e-2 if STAGES[way.source][1] else 1e-5)


@pytest.mark.parametrize("number", range(len(WAYS)))
def test_what_was_written_comes_in_again(resumed: Path, number: int, tmp_path: Path) -> None:
    """By the affine maps that are written beside the shards."""
    middle, again = resumed / f"{WAYS[number].source}.ucp", tmp_path / "again.ucp"
    source = resumed / f"{number}.native"
    convert_checkpoint(source, again, source_format="deepspeed", destination_format="ucp")
    with ucpformat.open(middle) as one, ucpformat.open(again) as other:
        assert set(one) == set(other)
        for name, view in one.items():
            for slot, item in view.items():
                assert other[name][slot].read().tobytes() == item.read().tobytes(), (name, slot)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tp_degree": "4"}, "was saved by 2 tensor-parallel ranks"),
        ({"tp_degree": "2", "stage": "3"}, "under ZeRO-0 to 2"),
        ({"tp_degree": "2", "pipeline": "0,3"}, "under ZeRO-0 to 2"),
        ({"tp_degree": "2", "patterns": "gone"}, "say that no rank holds"),
    ],
)
def test_what_cannot_be_split_is_refused(
    resumed: Path, settings: dict[str, str], text: str, tmp_path: Path
) -> None:
    if "patterns" in settings:
        document = rules((["**"], []))
        document["rules"][0]["layout"] = None
        (tmp_path / "gone.json").write_text(json.dumps(document))
        settings = settings | {"patterns": str(tmp_path / "gone.json")}
    with pytest.raises(UcpError, match=text) as refusal:
        convert_checkpoint(
            resumed / "tp-z1-bf16.ucp",
            tmp_path / "no",
            source_format="ucp",
            destination_format="deepspeed",
            settings=settings,
        )
    assert refusal.value.code == "UCP-E-MISMATCH"
