"""Every family whose fused weight DeepSpeed knows, from module classes of its names, at degrees 1, 2 and 4 and between.

`test_affine` has the arithmetic of most types; here are DeepSpeed's own choice of type and of whether to split at all,
key-value heads that degrees do not divide, ChatGLM's two key-value heads, biases, and Yuan's odd head counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from deepspeed.module_inject.fusedqkv_utils import (
    FUSED_QKV_TYPE_DICT,
    prepare_tp_fused_qkvw,
    require_tp_fused_qkvw,
    shard_value_with_share_qk,
    shared_qk_value_head_ids,
)
from deepspeed.module_inject.layers import TensorParallelIcShardConv2d, TensorParallelOcShardConv2d
from deepspeed.module_inject.tp_shard import AutoTPMeta, get_shard_size_list
from torch import nn

from tests.conversion.formats.deepspeed.autotp import (
    codegen_steps,
    kept_tail_steps,
    scaled_steps,
    shared_qk_steps,
    split_steps,
)
from tests.frameworks_live.deepspeed.moves import moved
from ucpformat.geometry import (
    ExplicitHoldings,
    Layout,
    LocalBox,
    Lowering,
    Mesh,
    MeshAxis,
    Step,
    local_map_of,
    lower,
    sub_parameter_steps,
)

DEGREES = (1, 2, 4)
WIDTH = 96
"""Elements of a query block, and of a row of the weight."""


def marker(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(1, torch.Size(shape).numel() + 1, dtype=torch.float64).reshape(shape)


def widths(extent: int, degree: int, meta: AutoTPMeta) -> list[int]:
    return list(get_shard_size_list(extent, degree, meta))


def thirds(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    return sub_parameter_steps("tp", 0, (rows // 3,) * 3, [widths(rows // 3, degree, meta)] * 3)


def two_key_values(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    blocks = (WIDTH, (rows - WIDTH) // 2, (rows - WIDTH) // 2)
    return sub_parameter_steps("tp", 0, blocks, [widths(block, degree, meta) for block in blocks])


def grouped(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    assert meta.num_kv_heads is not None
    keys = meta.num_kv_heads * (WIDTH // (meta.num_attention_heads or 1))
    blocks = (rows - 2 * keys, keys, keys)
    return sub_parameter_steps("tp", 0, blocks, [widths(block, degree, meta) for block in blocks])


def bloom(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    return split_steps("tp", 0, widths(rows, degree, meta))


def bigcode(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    return kept_tail_steps("tp", 0, widths(WIDTH, degree, meta), rows - WIDTH)


def codegen(rows: int, degree: int, meta: AutoTPMeta) -> tuple[Step, ...]:
    return codegen_steps(["tp"], degree, (rows, WIDTH))


def heads(count: int, key_values: int | None = None) -> AutoTPMeta:
    return AutoTPMeta(num_kv_heads=key_values or count, num_attention_heads=count, n_embd=WIDTH)


Steps = Callable[[int, int, AutoTPMeta], tuple[Step, ...]]
TYPES: dict[str, list[tuple[int, AutoTPMeta, Steps]]] = {
    "bloomtype": [(288, heads(32), bloom), (288, heads(6), bloom)],
    "glmtype": [(288, heads(32), thirds), (288, heads(6), thirds), (160, heads(8, 2), two_key_values)],
    "qwentype": [(288, heads(16), thirds), (288, heads(6), thirds)],
    "phi3type": [(192, heads(48, 24), grouped), (160, heads(12, 4), grouped), (192, heads(12, 6), grouped)],
    "bigcodetype": [(112, heads(16), bigcode), (100, heads(6), bigcode)],
    "codegentype": [(1152, heads(96), codegen), (1152, heads(16), codegen)],
}
CASES = [(family, *case) for family, kind in FUSED_QKV_TYPE_DICT.items() for case in TYPES[kind]]


def block(family: str) -> nn.Module:
    """A module whose class has the family's name, as DeepSpeed looks for it in the text of the module."""
    made: nn.Module = type(family, (nn.Module,), {})()
    return made


def shards(family: str, rows: int, degree: int, meta: AutoTPMeta) -> dict[int, torch.Tensor]:
    """What DeepSpeed gives each rank, and the whole where it says that nothing is to be done."""
    full = marker((rows, WIDTH))
    if not require_tp_fused_qkvw("transformer.h.0.attn.c_attn", degree):
        assert degree == 1
        return {0: full}
    module = block(family)
    return {rank: prepare_tp_fused_qkvw(module, full, degree, rank, meta) for rank in range(degree)}


def lowered(shape: tuple[int, ...], degree: int, steps: tuple[Step, ...]) -> Lowering:
    return lower(Layout(Mesh((MeshAxis("tp", degree),)), steps), shape)


@pytest.mark.parametrize(
    ("family", "rows", "meta", "steps"), CASES, ids=[f"{case[0]}-{case[2].num_kv_heads}" for case in CASES]
)
def test_families_at_every_degree(family: str, rows: int, meta: AutoTPMeta, steps: Steps) -> None:
    for before, after in itertools.permutations(DEGREES, 2):
        held = shards(family, rows, before, meta)
        source = lowered((rows, WIDTH), before, steps(rows, before, meta))
        target = lowered((rows, WIDTH), after, steps(rows, after, meta))
        found = moved(source, held, target)
        wanted = shards(family, rows, after, meta)
        assert found.keys() == wanted.keys()
        for rank, shard in wanted.items():
            assert torch.equal(found[rank].reshape(shard.shape), shard), (before, after, rank)


def test_every_type_is_looked_at() -> None:
    assert set(FUSED_QKV_TYPE_DICT.values()) == TYPES.keys()


def convolutions(degree: int, is_row_parallel: bool) -> list[nn.Conv2d]:
    """DeepSpeed's own shards of a convolution, split by input channels (row-parallel) or by output channels."""
    kind = TensorParallelIcShardConv2d if is_row_parallel else TensorParallelOcShardConv2d
    made = []
    for rank in range(degree):
        whole = nn.Conv2d(11, 7, 2, dtype=torch.float64)
        whole.weight = nn.Parameter(marker((7, 11, 2, 2)))
        whole.bias = nn.Parameter(marker((7,)))
        made.append(kind(whole, rank, degree).conv)
    return made


def later_longer(extent: int, degree: int) -> list[int]:
    """As many channels for each, and one more for the last ones."""
    return sorted(widths(extent, degree, AutoTPMeta()))


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(DEGREES, 2)))
@pytest.mark.parametrize("is_row_parallel", [True, False])
def test_a_row_parallel_bias_is_divided(before: int, after: int, is_row_parallel: bool) -> None:
    """Summed over ranks the bias counts once: DeepSpeed divides it by their number, to the bit for powers of two."""

    def weight(degree: int) -> Lowering:
        dim = 1 if is_row_parallel else 0
        steps = split_steps("tp", dim, later_longer((7, 11)[dim], degree))
        return lowered((7, 11, 2, 2), degree, steps)

    def bias(degree: int) -> Lowering:
        split = split_steps("tp", 0, later_longer(7, degree))
        return lowered((7,), degree, scaled_steps(degree) if is_row_parallel else split)

    source, target = (convolutions(degree, is_row_parallel) for degree in (before, after))
    for name, held in (("weight", weight), ("bias", bias)):
        mine = {rank: getattr(conv, name).detach() for rank, conv in enumerate(source)}
        found = moved(held(before), mine, held(after))
        for rank, conv in enumerate(target):
            theirs = getattr(conv, name).detach()
            assert torch.equal(found[rank].reshape(theirs.shape), theirs), (name, rank)
    if is_row_parallel:
        assert bias(before).scale == Fraction(1, before)
        summed = sum(
            (conv.get_parameter("bias").detach() for conv in target), torch.zeros(7, dtype=torch.float64)
        )
        assert torch.equal(summed, marker((7,)))


@pytest.mark.parametrize(("count", "odd", "even"), [(6, 2, 3), (10, 2, 5), (12, 4, 2)])
def test_heads_that_two_ranks_share(count: int, odd: int, even: int) -> None:
    """Yuan with an odd number of heads per rank gives one pair of heads to two ranks: no layout, but boxes."""

    def values(degree: int) -> dict[int, torch.Tensor]:
        return {
            rank: shard_value_with_share_qk(marker((count * 4, 3)), None, rank, degree, True, heads(count))[
                0
            ].detach()
            for rank in range(degree)
        }

    shape = (count * 4, 3)
    maps = []
    for rank in range(odd):
        ids = shared_qk_value_head_ids(count, odd, rank)
        boxes = [LocalBox((head * 4, 0), (place * 4, 0), (4, 3)) for place, head in enumerate(ids)]
        maps.append((rank, local_map_of(shape, (len(ids) * 4, 3), boxes)))
    source = ExplicitHoldings(shape, tuple(maps))
    target = lowered(shape, even, shared_qk_steps("tp", 0, shape[0]))
    assert sum(local_map.size for _, local_map in maps) > shape[0] * 3
    assert (count // odd % 2, count // even % 2) == (1, 0)
    found = moved(source, values(odd), target)
    for rank, shard in values(even).items():
        assert torch.equal(found[rank].reshape(shard.shape), shard)
