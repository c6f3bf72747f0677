"""Parameters found in flat buffers by their lengths; the live tests have the buffers that Megatron fills."""

from __future__ import annotations

import math
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import given, settings

from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.conversion.formats.megatron.flat_buffers import (
    Buffer,
    Chunks,
    Placed,
    place,
    resolve,
)
from ucpformat.conversion.formats.megatron.rank_parameters import LocalParameter, ModelTensor
from ucpformat.geometry import Box

bucket_sizes = st.sampled_from([None, 1, 200, 1000])


def flat(numel: int) -> LocalParameter:
    box = Box((0,), (numel,))
    return LocalParameter(ModelTensor("w", "float32", (numel,), (box,)), (box,))


def lengths_of(parameters: Sequence[LocalParameter], bucket_size: int | None) -> tuple[int, ...]:
    _, buckets = assign_buckets(
        [BufferParameter(one.numel) for one in parameters], dp=3, bucket_size=bucket_size
    )
    return tuple(bucket.unpadded for bucket in buckets)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12), bucket_sizes)
def test_places_are_those_of_the_rule(sizes: list[int], bucket_size: int | None) -> None:
    parameters = [flat(size) for size in sizes]
    slots, _ = assign_buckets([BufferParameter(size) for size in sizes], dp=3, bucket_size=bucket_size)
    lengths = lengths_of(parameters, bucket_size)
    assert place(parameters, lengths) == [(slot.bucket, slot.place.offsets[0]) for slot in slots]
    assert place(parameters, (*lengths, 64)) is None
    assert place(parameters, (*lengths[:-1], lengths[-1] + 64)) is None
    assert place([*parameters, flat(7)], lengths) is None


def test_nothing_is_in_no_buckets() -> None:
    assert place([], ()) == []
    assert place([], (64,)) is None
    assert place([flat(3)], ()) is None


H, F = 4, 6
"""Hidden and intermediate size."""
LAYER = {
    "self_attention.linear_proj.weight": ((H, 2 * H), 1),
    "self_attention.linear_qkv.layer_norm_weight": ((H,), None),
    "self_attention.linear_qkv.weight": ((6 * H, H), 0),
    "mlp.linear_fc1.weight": ((4 * F, H), 0),
    "mlp.linear_fc2.weight": ((H, 2 * F), 1),
}
GATED = "mlp.linear_fc1.weight"


def split(shape: tuple[int, ...], dim: int | None, count: int) -> list[Box]:
    if dim is None or count == 1:
        return [Box.whole(shape)]
    extent = shape[dim] // count
    return [
        Box(
            tuple(part * extent if at == dim else 0 for at in range(len(shape))),
            tuple(extent if at == dim else whole for at, whole in enumerate(shape)),
        )
        for part in range(count)
    ]


def stacked(boxes: list[Box], number: int) -> list[Box]:
    return [Box((number, *box.offset), (1, *box.shape)) for box in boxes]


@settings(max_examples=40)
@given(
    tp=st.sampled_from([1, 2]),
    spans=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=2), min_size=1, max_size=3),
    data=st.data(),
    bucket_size=bucket_sizes,
    is_stacked=st.booleans(),
    knows_tp=st.booleans(),
)
def test_stages_and_chunks_are_found(
    tp: int,
    spans: list[list[int]],
    data: st.DataObject,
    bucket_size: int | None,
    is_stacked: bool,
    knows_tp: bool,
) -> None:
    """``spans``: how many layers each stage has, chunk by chunk. The right places are among those that fit."""
    chunks = min(map(len, spans))
    counts = [[stage[chunk] for stage in spans] for chunk in range(chunks)]
    layers = sum(map(sum, counts))
    order = data.draw(st.permutations(list(LAYER)))
    tensors: list[ModelTensor] = []
    embedding = ModelTensor(
        "embedding.word_embeddings.weight", "float32", (8, H), tuple(split((8, H), 0, tp))
    )
    norm = ModelTensor("decoder.final_layernorm.weight", "float32", (H,), (Box.whole((H,)),))
    output = ModelTensor("output_layer.weight", "float32", (8, H), tuple(split((8, H), 0, tp)))
    members: dict[str, list[Box]] = {}
    for suffix in order:
        shape, dim = LAYER[suffix]
        members[suffix] = split(shape, dim, 2 * tp if suffix == GATED else tp)
    named: dict[tuple[str, int], ModelTensor] = {}
    for suffix, boxes in members.items():
        shape = LAYER[suffix][0]
        if is_stacked and layers:
            held = tuple(box for number in range(layers) for box in stacked(boxes, number))
            tensor = ModelTensor(f"decoder.layers.{suffix}", "float32", (layers, *shape), held)
            tensors.append(tensor)
            named.update({(suffix, number): tensor for number in range(layers)})
    if not is_stacked:
        for number in range(layers):
            for suffix, boxes in members.items():
                name = f"decoder.layers.{number}.{suffix}"
                named[suffix, number] = ModelTensor(name, "float32", LAYER[suffix][0], tuple(boxes))
                tensors.append(named[suffix, number])
    tensors = [embedding, *tensors, norm, output]

    def local(tensor: ModelTensor, boxes: list[Box], part: int, *, gated: bool) -> LocalParameter:
        chosen = [boxes[part], boxes[tp + part]] if gated else boxes[:1] if len(boxes) == 1 else [boxes[part]]
        return LocalParameter(tensor, tuple(chosen))

    ranks: dict[int, list[dict[str, Buffer]]] = {}
    expected: list[Placed] = []
    first = 0
    for chunk in range(chunks):
        for stage, count in enumerate(counts[chunk]):
            for part in range(tp):
                parameters = []
                if (stage, chunk) == (0, 0):
                    parameters.append(local(embedding, list(embedding.shards), part, gated=False))
                for number in range(first, first + count):
                    for suffix in order:
                        boxes = stacked(members[suffix], number) if is_stacked else members[suffix]
                        parameters.append(local(named[suffix, number], boxes, part, gated=suffix == GATED))
                if (stage, chunk) == (len(spans) - 1, chunks - 1):
                    parameters.append(local(norm, list(norm.shards), part, gated=False))
                    parameters.append(local(output, list(output.shards), part, gated=False))
                lengths = lengths_of(parameters, bucket_size)
                rank = stage * tp + part
                ranks.setdefault(rank, []).append({"float32": Buffer(lengths)} if lengths else {})
                for one, (bucket, offset) in zip(parameters, place(parameters, lengths) or [], strict=True):
                    expected.append(Placed(one, 0, rank, chunk, bucket, offset))
            first += count
    optimizers: list[dict[int, Chunks]] = [dict(ranks)]
    found = list(resolve(tensors, optimizers, tensor_parallel=tp if knows_tp else None))
    assert any(set(map(repr, guess)) == set(map(repr, expected)) for guess in found)
    total = sum(placed.parameter.numel for placed in expected)
    assert all(sum(placed.parameter.numel for placed in guess) == total for guess in found)


def test_what_nobody_can_tell_is_left_alone() -> None:
    held: dict[int, Chunks] = {0: [{"float32": Buffer((64,))}]}
    weight = ModelTensor("w", "float32", (8, 8), (Box.whole((8, 8)),))
    assert len(list(resolve([weight], [held]))) > 0
    assert not list(resolve([weight], [held, held, held]))
    assert not list(resolve([weight], [{1: held[0]}]))
    both = [ModelTensor(f"{head}.layers.0.w", "float32", (8, 8), weight.shards) for head in ("a", "b")]
    assert not list(resolve(both, [held])), "two stacks of layers"
    huge = ModelTensor("a.layers.w", "float32", (1 << 60, 8), (Box((0, 0), (1 << 60, 8)),))
    assert not list(resolve([huge], [held])), "layers that were not saved one by one"
    claimed = ModelTensor("a.layers.w", "float32", (1 << 60, 8), (Box((0, 0), (1, 8)),))
    assert not list(resolve([claimed], [held]))
    assert math.prod(claimed.shape) > 1 << 60


def test_buckets_one_after_another() -> None:
    """Of which one length is known: the sizes that they may have had are tried."""
    tensors = [
        ModelTensor(name, "float32", (numel,), (Box.whole((numel,)),))
        for name, numel in (("embedding.a.weight", 70), ("b", 130), ("c", 5))
    ]
    parameters = [LocalParameter(tensor, tensor.shards) for tensor in tensors]
    lengths = lengths_of(parameters, 100)
    assert len(lengths) == 2
    held: dict[int, Chunks] = {0: [{"float32": Buffer((sum(lengths),), (None, 100))}]}
    found = next(resolve(tensors, [held]))
    assert [(one.bucket, one.offset) for one in found] == [(0, lengths[0]), (0, 64), (0, 0)]
    assert not list(resolve(tensors, [{0: [{"float32": Buffer((sum(lengths),), (None, 10**6))}]}]))
