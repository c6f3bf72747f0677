"""The distributed optimizer's buffers as Megatron fills them with marker parameters, at several degrees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.distributed.distributed_data_parallel_config import DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from numpy.typing import NDArray

from tests.conversion.formats.megatron.placements import bucket_steps
from tests.conversion.formats.megatron.sharded_tensor import ShardedTensorFacts, facts_of, sharded_map
from tests.frameworks_live.megatron.worlds import array, world
from tests.geometry import model
from ucpformat.conversion.formats.megatron.buffers import BufferParameter, assign_buckets
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard, exact_cover, lower

# Shapes of local parameters with whether each is a shared embedding.
MODELS: dict[str, list[tuple[tuple[int, ...], bool]]] = {
    "plain": [((7, 9), False), ((5,), False), ((128,), False), ((33, 3), False), ((1,), False)],
    "shared first": [((20, 9), True), ((65,), False), ((64, 2), False)],
    "shared last": [((65,), False), ((64, 2), False), ((20, 9), True)],
    "shared inside": [((3, 50), False), ((20, 9), True), ((64, 2), False), ((70,), False)],
}


class Bare(DistributedOptimizer):  # type: ignore[misc]
    """The optimizer without Adam: only what says where states lie; its states are the marker parameters."""

    def __init__(self, buffer: _ParamAndGradBuffer) -> None:
        self.buffers = [buffer]
        self.gbuf_ranges = [self._build_gbuf_range_map(buffer)]
        self.data_parallel_group = buffer.data_parallel_group
        self.data_parallel_group_idx = 0
        self.distributed_optimizer_instance_id = 0
        self.per_bucket_numel: list[Any] = []
        self.per_bucket_numel_unpadded: list[Any] = []

    def _get_main_param_and_optimizer_states(
        self, model_param: torch.nn.Parameter
    ) -> dict[str, torch.Tensor]:
        for ranges in self.gbuf_ranges[0].values():
            for bucket in ranges:
                if model_param in bucket["param_map"]:
                    part = bucket["param_map"][model_param]["param"]
                    return {"param": model_param.detach().view(-1)[part.start : part.end].clone()}
        raise AssertionError("a parameter is in no bucket")


@pytest.fixture(autouse=True)
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are made where `current_device` says, which is all of CUDA that they need."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "cpu")


def groups() -> ProcessGroupCollection:
    """What the buffer asks for; where it looks them up itself, 0.16.1 names a function that is gone."""
    found = ProcessGroupCollection()
    found.tp = parallel_state.get_tensor_model_parallel_group()
    found.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True)
    return found


def make_buffer(shapes: list[tuple[tuple[int, ...], bool]], bucket_size: int | None, *, wide: bool) -> Any:
    parameters = []
    base = 1
    for shape, is_shared in shapes:
        values = torch.from_numpy(base + model.counter(shape)).float()
        parameters.append(torch.nn.Parameter(values))
        parameters[-1].shared_embedding = is_shared  # type: ignore[attr-defined]
        base += values.numel()
    buffer = _ParamAndGradBuffer(
        DistributedDataParallelConfig(use_distributed_optimizer=True, pad_buckets_for_high_nccl_busbw=wide),
        torch.float32,
        torch.float32,
        parameters,
        parallel_state.get_data_parallel_group(with_context_parallel=True),
        bucket_size,
        {parameter: str(place) for place, parameter in enumerate(parameters)},
        1.0,
        list(range(len(parameters))),
        False,
        groups(),
    )
    return buffer, parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bucket_size", [None, 100, 1])
@pytest.mark.parametrize(("dp", "wide"), [(1, False), (2, False), (3, False), (8, False), (2, True)])
def test_buckets(name: str, bucket_size: int | None, dp: int, *, wide: bool) -> None:
    shapes = MODELS[name]
    ours = [BufferParameter(int(np.prod(shape)), is_shared) for shape, is_shared in shapes]
    slots, buckets = assign_buckets(ours, dp=dp, bucket_size=bucket_size, high_bandwidth=wide)
    mesh = Mesh((MeshAxis("dp", dp),))
    bases = np.cumsum([1] + [parameter.numel for parameter in ours])
    for rank in range(dp):
        expected = [np.zeros(bucket.length // dp, dtype=np.int64) for bucket in buckets]
        held = []
        for (shape, _), slot, base in zip(shapes, slots, bases[:-1], strict=True):
            layout = Layout(mesh, bucket_steps((), "b"))
            local_map = lower(layout, shape, place=slot.place).at((rank,))
            assert local_map is not None
            held.append(local_map)
            local = model.local_array(local_map, base + model.counter(shape))
            expected[slot.bucket][local >= 0] = local[local >= 0]
        with world(rank, dp):
            buffer, parameters = make_buffer(shapes, bucket_size, wide=wide)
            assert [(b.offset, b.grad_data.numel(), b.numel_unpadded) for b in buffer.buckets] == [
                (bucket.start, bucket.length, bucket.unpadded) for bucket in buckets
            ]
            for slot, parameter in zip(slots, parameters, strict=True):
                start, _, bucket = buffer.param_index_map[parameter]
                assert (start - buckets[bucket].start, bucket) == (slot.place.offsets[0], slot.bucket)
            for bucket, local in zip(buffer.buckets, expected, strict=True):
                np.testing.assert_array_equal(array(bucket.param_data).reshape(dp, -1)[rank], local)
            (ranges,) = DistributedOptimizer._build_gbuf_range_map(buffer).values()
            for place, parameter in enumerate(parameters):
                part = ranges[slots[place].bucket]["param_map"].get(parameter)
                # The parameter's own range and the place in the rank's shard, as the optimizer slices them.
                assert (part is not None) == bool(held[place].pieces)
                if part is not None:
                    assert held[place].mapped == part["param"].size
                    first = held[place].pieces[0]
                    shape = shapes[place][0]
                    cell = int(np.ravel_multi_index(first.box.offset, shape))
                    assert (cell, first.local.offset) == (part["param"].start, part["gbuf_local"].start)


def stored_box(facts: ShardedTensorFacts, *, is_padding: bool) -> Box:
    """The box of a bucket that a shard is.

    Where a shared embedding closes the bucket before it, 0.16.1 counts the alignment of the embedding as part of
    that bucket, and makes a shard of padding that leaves it. Ours refuses such a shard; here it is clipped.
    """
    (start,), (extent,), (length,) = facts.global_offset, facts.local_shape, facts.global_shape
    if is_padding and start + extent > length:
        with pytest.raises(UcpError, match="leaves the tensor"):
            sharded_map(facts)
        return Box((start,), (length - start,))
    (piece,) = sharded_map(facts).pieces
    assert piece.local.offset == 0
    return piece.box


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dp", [1, 2, 3, 4])
def test_dp_reshardable(name: str, dp: int) -> None:
    """Shards of a bucket of ``numel_unpadded`` elements, without a grid; what pads it is not stored."""
    shapes = [
        ((10, *shape), is_shared) for shape, is_shared in MODELS[name]
    ]  # Megatron wants every shard to hold some
    ours = [BufferParameter(int(np.prod(shape)), is_shared) for shape, is_shared in shapes]
    slots, buckets = assign_buckets(ours, dp=dp, bucket_size=1000)
    found: dict[str, list[tuple[Box, Any, bool]]] = {}
    for rank in range(dp):
        with world(rank, dp):
            buffer, _ = make_buffer(shapes, 1000, wide=False)
            state = Bare(buffer).sharded_param_state_dp_reshardable({})
            for bucket in [bucket for per_dtype in state[0].values() for bucket in per_dtype]:
                for entry in bucket:
                    tensor = entry["param"]
                    assert isinstance(tensor, ShardedTensor)
                    facts = facts_of(tensor)
                    assert facts.axis_fragmentations is None
                    padding: Any = entry["padding"]
                    listed = found.setdefault(tensor.key, [])
                    listed.append(
                        (stored_box(facts, is_padding=padding.unwrap()), tensor.data, padding.unwrap())
                    )
    assert len(found) == len(buckets)
    for key, entries in found.items():
        number = int(key.split("bucket_idx_")[1].split(".")[0])
        length = buckets[number].unpadded
        assert exact_cover([box for box, _, _ in entries], (length,)) is None
        stored = np.zeros(length, dtype=np.int64)
        for box, data, is_padding in entries:
            if not is_padding:
                stored[box.offset[0] : box.stop[0]] = array(data)
        # Read back through our map of the bucket over other ranks: 5 of them.
        elsewhere, _ = assign_buckets(ours, dp=5, bucket_size=1000)
        base = 1
        for (shape, _), slot, other in zip(shapes, slots, elsewhere, strict=True):
            size = int(np.prod(shape))
            if slot.bucket == number:
                assert slot.place.offsets == other.place.offsets, (
                    "parameters begin at one place at any degree"
                )
                begin = slot.place.offsets[0]
                np.testing.assert_array_equal(stored[begin : begin + size], base + np.arange(size))
            base += size


def test_buckets_behind_tensor_parallelism() -> None:
    # A state of a row-parallel weight: split by columns, flat in the bucket of its rank, split again.
    mesh = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)))
    slots, buckets = assign_buckets([BufferParameter(6 * 5), BufferParameter(3)], dp=2)
    steps = bucket_steps((Shard("tp", 1, "even"),), "b")
    lowering = lower(Layout(mesh, steps), (6, 10), place=slots[0].place)
    shards: dict[tuple[int, int], NDArray[np.int64]] = {}
    for tp in range(2):
        for dp in range(2):
            with world(dp, 2):
                weights = [torch.nn.Parameter(torch.zeros(6, 5)), torch.nn.Parameter(torch.zeros(3))]
                with torch.no_grad():
                    part = model.counter((6, 10))[:, 5 * tp : 5 * tp + 5]
                    weights[0].copy_(torch.from_numpy(part.copy()))
                buffer = _ParamAndGradBuffer(
                    DistributedDataParallelConfig(use_distributed_optimizer=True),
                    torch.float32,
                    torch.float32,
                    weights,
                    parallel_state.get_data_parallel_group(with_context_parallel=True),
                    None,
                    {weight: str(place) for place, weight in enumerate(weights)},
                    1.0,
                    [0, 1],
                    False,
                    groups(),
                )
                data = array(buffer.buckets[0].param_data)
                assert data.size == buckets[0].length
                shards[dp, tp] = data.reshape(2, -1)[dp]
    for coordinate, theirs in shards.items():
        mine = model.local_of(lowering, coordinate)
        assert mine is not None
        held = mine >= 0
        np.testing.assert_array_equal(mine[held], theirs[held])
        assert not theirs[~held].any()
