"""AutoTP's layouts and DeepSpeed's affine maps, against DeepSpeed's own code on marker data; the degree always changes.

The layouts that DeepSpeed's name categories refused (``autotp_unsupported_parameter_patterns``) are among them:
a block that is kept whole beside a split one (GPT-BigCode), CodeGen's dealt-out blocks, Yuan's shared query-key
heads, and a bias that every rank holds divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from deepspeed.checkpoint.affine import (
    ParamAffineMap,
    block_gather_map,
    contiguous_split_map,
    replicated_map,
    segmented_map,
    sub_param_map,
)
from deepspeed.module_inject.fusedqkv_utils import (
    codegen_block_layout,
    prepare_tp_fused_qkvw,
    shard_value_with_share_qk,
    shared_qk_value_head_ids,
)
from deepspeed.module_inject.tp_shard import AutoTPMeta, get_shard_size_list

from tests.conversion.formats.deepspeed.autotp import (
    codegen_steps,
    kept_tail_steps,
    scaled_steps,
    shared_qk_steps,
    split_steps,
)
from tests.frameworks_live.deepspeed.moves import moved
from ucpformat.conversion.formats.deepspeed.tensor_parallel.affine import affine_description, affine_holdings
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Lowering, Mesh, MeshAxis, Step, lower, sub_parameter_steps

HIDDEN = 48
HEADS = 48
META = AutoTPMeta(num_kv_heads=HEADS, num_attention_heads=HEADS, n_embd=HIDDEN)
UNEVEN = AutoTPMeta(num_kv_heads=6, num_attention_heads=6, n_embd=HIDDEN)


def marker(shape: tuple[int, ...]) -> torch.Tensor:
    """Every element another number, exact in float64 and after division by any degree here."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).reshape(shape) * 1440


def fused(block: str, rows: int, meta: AutoTPMeta) -> Callable[[int], list[torch.Tensor]]:
    """DeepSpeed's own split of a fused weight, which looks for the name of the block in the text of the module."""

    def shards(degree: int) -> list[torch.Tensor]:
        full = marker((rows, HIDDEN))
        return [prepare_tp_fused_qkvw(block, full, degree, rank, meta) for rank in range(degree)]

    return shards


def shared_qk(is_value: bool) -> Callable[[int], list[torch.Tensor]]:
    def shards(degree: int) -> list[torch.Tensor]:
        full = marker((96, HIDDEN) if is_value else (HIDDEN, 96))
        return [
            shard_value_with_share_qk(full, None, rank, degree, is_value, META)[0].detach()
            for rank in range(degree)
        ]

    return shards


def lowered(shape: tuple[int, ...], degree: int, steps: Callable[[int], tuple[Step, ...]]) -> Lowering:
    return lower(Layout(Mesh((MeshAxis("tp", degree),)), steps(degree)), shape)


@dataclass(frozen=True)
class Row:
    """A layout of DeepSpeed's: what its code gives each rank, our steps, and its own affine map where it has one."""

    shape: tuple[int, ...]
    shards: Callable[[int], list[torch.Tensor]]
    steps: Callable[[int], tuple[Step, ...]]
    affine: Callable[[int], ParamAffineMap] | None = None
    degrees: tuple[int, ...] = (2, 3, 4)


def widths(size: int, degree: int, meta: AutoTPMeta = META) -> list[int]:
    return list(get_shard_size_list(size, degree, meta))


def split(dim: int, shape: tuple[int, ...]) -> Callable[[int], list[torch.Tensor]]:
    return lambda degree: list(torch.split(marker(shape), widths(shape[dim], degree, UNEVEN), dim=dim))


def codegen_map(degree: int) -> ParamAffineMap:
    size, ids = codegen_block_layout(576, degree, HEADS)
    return block_gather_map((576, HIDDEN), ids, size, 0)


def yuan_map(degree: int) -> ParamAffineMap:
    ids = {rank: shared_qk_value_head_ids(HEADS, degree, rank) for rank in range(degree)}
    return block_gather_map((96, HIDDEN), ids, 2, 0)


ROWS = {
    "column": Row(
        (30, 7),
        split(0, (30, 7)),
        lambda n: split_steps("tp", 0, widths(30, n, UNEVEN)),
        lambda n: contiguous_split_map((30, 7), widths(30, n, UNEVEN), 0),
        (2, 3, 4, 5),
    ),
    "row": Row(
        (7, 30),
        split(1, (7, 30)),
        lambda n: split_steps("tp", 1, widths(30, n, UNEVEN)),
        lambda n: contiguous_split_map((7, 30), widths(30, n, UNEVEN), 1),
        (2, 3, 4, 5),
    ),
    "glm": Row(
        (144, HIDDEN),
        fused("GLMBlock", 144, META),
        lambda n: sub_parameter_steps("tp", 0, (48,) * 3, [widths(48, n)] * 3),
        lambda n: sub_param_map((144, HIDDEN), (48,) * 3, [widths(48, n)] * 3, 0),
    ),
    "glm-uneven": Row(
        (144, HIDDEN),
        fused("GLMBlock", 144, UNEVEN),
        lambda n: sub_parameter_steps("tp", 0, (48,) * 3, [widths(48, n, UNEVEN)] * 3),
        lambda n: sub_param_map((144, HIDDEN), (48,) * 3, [widths(48, n, UNEVEN)] * 3, 0),
        (2, 4, 5),
    ),
    "phi3": Row(
        (96, HIDDEN),
        fused("Phi3DecoderLayer", 96, AutoTPMeta(num_kv_heads=24, num_attention_heads=48, n_embd=HIDDEN)),
        lambda n: sub_parameter_steps("tp", 0, (48, 24, 24), None),
        lambda n: sub_param_map((96, HIDDEN), (48, 24, 24), [[48 // n] * n, [24 // n] * n, [24 // n] * n], 0),
    ),
    "bloom": Row(
        (144, HIDDEN), fused("BloomBlock", 144, META), lambda n: split_steps("tp", 0, widths(144, n))
    ),
    "bigcode": Row(
        (58, HIDDEN),
        fused("GPTBigCodeBlock", 58, META),
        lambda n: kept_tail_steps("tp", 0, widths(48, n), 10),
        lambda n: segmented_map((58, HIDDEN), [(48, False), (10, True)], 0, n, [widths(48, n)]),
    ),
    "codegen": Row(
        (576, HIDDEN),
        fused("CodeGenBlock", 576, META),
        lambda n: codegen_steps(["tp"], n, (576, HIDDEN)),
        codegen_map,
        (2, 4),
    ),
    "yuan-value": Row((96, HIDDEN), shared_qk(True), lambda n: shared_qk_steps("tp", 0, 96), yuan_map),
    "yuan-output": Row((HIDDEN, 96), shared_qk(False), lambda n: shared_qk_steps("tp", 1, 96)),
    "bias": Row(
        (31,),
        lambda n: [marker((31,)) / float(n)] * n,
        scaled_steps,
        lambda n: replicated_map((31,), n, scale=1 / n),
        (2, 4),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_our_steps_are_deepspeeds_split(name: str) -> None:
    """Shards that DeepSpeed's code made for one degree, moved by our plan, are those that it makes for another."""
    row = ROWS[name]
    for source in row.degrees:
        shards = dict(enumerate(row.shards(source)))
        for target in row.degrees:
            found = moved(
                lowered(row.shape, source, row.steps), shards, lowered(row.shape, target, row.steps)
            )
            wanted = row.shards(target)
            assert found.keys() == set(range(target))
            for rank, shard in enumerate(wanted):
                assert torch.equal(found[rank].reshape(shard.shape), shard), (source, target, rank)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.affine is not None])
def test_affine_maps_come_in(name: str) -> None:
    """DeepSpeed's maps say what our steps say: its extraction at one degree becomes that at another."""
    row = ROWS[name]
    full = marker(row.shape)
    assert row.affine is not None
    for source in row.degrees:
        theirs = row.affine(source)
        theirs.validate_coverage()
        held = affine_holdings(theirs.to_dict(), at=name)
        shards = {rank: theirs.extract(full, rank) for rank in range(source)}
        back = moved(held, shards, lowered(row.shape, 1, lambda _: ()))
        assert torch.equal(back[0].reshape(row.shape), full)
        for target in row.degrees:
            found = moved(held, shards, lowered(row.shape, target, row.steps))
            for rank, shard in enumerate(row.shards(target)):
                assert torch.equal(found[rank].reshape(shard.shape), shard)


@pytest.mark.parametrize("name", ROWS)
def test_affine_maps_go_out(name: str) -> None:
    """What we describe, DeepSpeed validates in full, extracts as its own code splits, and rebuilds."""
    row = ROWS[name]
    full = marker(row.shape)
    for degree in row.degrees:
        ours = ParamAffineMap.from_dict(affine_description(lowered(row.shape, degree, row.steps)))
        ours.validate_coverage()
        shards = row.shards(degree)
        for rank, shard in enumerate(shards):
            assert torch.equal(ours.extract(full, rank), shard)
        assert torch.equal(ours.rebuild(dict(enumerate(shards))), full)
        again = affine_description(affine_holdings(ours.to_dict(), at=name))
        assert affine_description(affine_holdings(again, at=name)) == again


def test_codegen_over_a_multiple_of_its_blocks() -> None:
    """Eight ranks are four by two: an axis for the blocks, one for the parts of each."""
    layout = Layout(
        Mesh((MeshAxis("block", 4), MeshAxis("part", 2))), codegen_steps(["block", "part"], 8, (1152, 16))
    )
    meta = AutoTPMeta(num_kv_heads=32, num_attention_heads=32, n_embd=384)
    full = marker((1152, 16))
    shards = {rank: prepare_tp_fused_qkvw("CodeGenBlock", full, 8, rank, meta) for rank in range(8)}
    whole = lowered((1152, 16), 1, lambda _: ())
    assert torch.equal(moved(lower(layout, (1152, 16)), shards, whole)[0].reshape(1152, 16), full)


def test_a_map_with_strides_that_are_no_box_comes_in() -> None:
    """A diagonal and what is beside it: pieces that walk across the rows of the tensor."""
    shape = (4, 4)
    entry: dict[str, Any] = {"logical_shape": [4, 4], "ranks": {}}
    diagonal = {"shape": [4], "source": [0, [5]], "dest": [0, [1]], "locations": [0]}
    rest = {"shape": [3, 4], "source": [1, [5, 1]], "dest": [0, [4, 1]], "locations": [1]}
    entry["ranks"] = {
        0: {"shard_shape": [4], "pieces": [diagonal]},
        1: {"shard_shape": [12], "pieces": [rest]},
    }
    full = marker(shape)
    theirs = ParamAffineMap.from_dict(entry)
    theirs.validate_coverage()
    shards = {rank: theirs.extract(full, rank) for rank in range(2)}
    back = moved(affine_holdings(entry, at=""), shards, lowered(shape, 1, lambda _: ()))
    assert torch.equal(back[0].reshape(shape), full)


def changed(entry: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    """The column split over two ranks with its second piece changed."""
    first, second = entry["ranks"][0], entry["ranks"][1]
    piece = {**second["pieces"][0], **members}
    return {**entry, "ranks": {0: first, 1: {**second, "pieces": [piece]}}}


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"source": [0, [7, 1]]}, "UCP-E-COVER"),  # a gap: DeepSpeed returns uninitialised memory
        ({"source": [1000, [7, 1]]}, "UCP-E-LAYOUT"),
        ({"source": [98, [14, 1]]}, "UCP-E-LAYOUT"),
        ({"dest": [1, [7, 1]]}, "UCP-E-LAYOUT"),
        ({"dest": [0, [1, 1]]}, "UCP-E-LAYOUT"),
        ({"scale": 0.0}, "UCP-E-LAYOUT"),
        ({"scale": 0.5}, "UCP-E-LAYOUT"),
        ({"shape": [14]}, "UCP-E-LAYOUT"),
        ({"shape": "x"}, "UCP-E-LAYOUT"),
    ],
)
def test_bad_maps_are_refused(members: dict[str, Any], code: str) -> None:
    entry = contiguous_split_map((28, 7), (14, 14), 0).to_dict()
    affine_holdings(entry, at="here")
    with pytest.raises(UcpError) as refusal:
        affine_holdings(changed(entry, **members), at="here")
    assert refusal.value.code == code
    assert "here" in refusal.value.at


def test_what_no_map_can_say_is_refused() -> None:
    from ucpformat.geometry import Pad, Partial, Shard

    mesh = Mesh((MeshAxis("tp", 2),))
    for steps in ((Pad(0, multiple=2), Shard("tp", 0, "even")), (Partial("tp", "sum"),)):
        with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
            affine_description(lower(Layout(mesh, steps), (3, 2)))
    assert affine_holdings(replicated_map((2,), 2, scale=0.5).to_dict(), at="").scale == Fraction(1, 2)
