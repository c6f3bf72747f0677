"""States in the flat buffers of distributed optimizers as states of parameters (`flat_buffers` says which is where).

Read from ``dp_reshardable``, a 1-D tensor of each bucket and state, and from ``dp_zero_gather_scatter``, an object of
each rank with a tensor of each buffer and state. That the right parameters were found is seen in their values: a
float32 copy, rounded, is the parameter's value. A sample of each is compared before anything is planned, and all of
it as it is read.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.formats.megatron.flat_buffers import Buffer, Placed, resolve
from ucpformat.conversion.formats.megatron.rank_parameters import ModelTensor
from ucpformat.errors import error
from ucpformat.geometry import Box, row_major_strides
from ucpformat.model.dtype import dtype
from ucpformat.storage.host_memory import selection
from ucpformat.tensor_files.byte_source import element_view
from ucpformat.tensor_files.object_tree import spelled
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES, TorchDtype
from ucpformat.tensor_files.torch_zip import StoredTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.job import ReadBox
    from ucpformat.conversion.dcp_files.directory import DcpDirectory

__all__ = ["PARAM", "FlatSource", "FlatStates", "as_reshardable", "flattened_source", "read_flat_states"]

_PREFIX: Final = (
    r"(?:chained_(?P<chained>\d{1,9})\.)?optimizer\.distributed\.dp_group_idx_(?P<rank>\d{1,9})\."
)
_BUCKET: Final = re.compile(
    _PREFIX
    + r"gbuf_idx_(?P<buffer>\d{1,9})\.dtype_\(torch\.(?P<dtype>\w+), torch\.\w+\)"
    + r"\.bucket_idx_(?P<bucket>\d{1,9})\.(?P<state>\w+)"
)
_OBJECT: Final = re.compile(_PREFIX + r"(?P<name>\w+)/shard_0_1")
_PARAM_STATE: Final = "param_state"
_RESHARDABLE: Final = "fully_reshardable"
_SHARDING: Final = "param_state_sharding_type"
PARAM: Final = "param"
_SAMPLE: Final = 64
_BLOCK: Final = 1 << 20  # elements that are compared at a time

_Rank = tuple[int, int]
ReadElements = Callable[[int, "NDArray[Any]"], None]
"""Fills a 1-D array with the elements of a flat tensor from one on."""


@dataclass(frozen=True, slots=True)
class _Flat:
    """A flat tensor of one state: of one bucket, or of a whole buffer with buckets one after another."""

    dtype: str
    length: int
    read: ReadElements


@dataclass(frozen=True, slots=True)
class _FlatBox:
    """A box of a parameter, its elements in C order from ``start`` on in a flat tensor."""

    box: Box
    flat: _Flat
    start: int

    def read(self, wanted: Box, target: NDArray[Any]) -> None:
        """Fill ``target`` with the part ``wanted`` of the box."""
        shape, extents = self.box.shape, wanted.shape
        # Dims behind the last one that is not whole lie together in memory.
        depth = len(shape)
        while depth and extents[depth - 1] == shape[depth - 1]:
            depth -= 1
        run = math.prod(extents[max(depth - 1, 0) :])
        strides = row_major_strides(shape)
        first = wanted.relative_to(self.box).offset
        for outer in product(*map(range, extents[: max(depth - 1, 0)])):
            index = [*outer, *(0,) * (len(shape) - len(outer))]
            begin = sum((a + b) * step for a, b, step in zip(first, index, strides, strict=True))
            data = np.empty(run, target.dtype)
            self.flat.read(self.start + begin, data)
            target[outer] = data.reshape(extents[len(outer) :])


@dataclass(frozen=True, slots=True)
class FlatSource:
    """One state of an atom, in parts that cover it."""

    parts: tuple[_FlatBox, ...]

    def __call__(self, box: Box, out: NDArray[np.generic]) -> None:
        """Fill ``out`` with a box."""
        for part in self.parts:
            common = part.box.intersect(box)
            if common is not None:
                part.read(common, out[selection(common, box)])


@dataclass(frozen=True, slots=True)
class FlatStates:
    """``sources`` by atom and state, with the data type; ``groups`` is what the common state would have of the groups.

    ``keys`` are the tensors and objects that all this came from.
    """

    sources: Mapping[str, Mapping[str, tuple[str, FlatSource]]]
    groups: dict[Any, Any]
    keys: frozenset[str]

    def common(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of the common state that are others where each state is stored with its parameter."""
        return as_reshardable({**tree, "optimizer": self.groups})


def flattened_source(directory: DcpDirectory, key: str) -> FlatSource:
    """Return a tensor that Megatron-core 0.13 to 0.15 stored in flattened pieces (``fully_sharded_model_space``).

    What is stored has the number of shards along each dim, and behind those the elements of one, in C order
    (dist_checkpointing/strategies/torch.py, `sharded_tensor_to_torch_sharded_tensor`).

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for shapes that do not fit one another.
    """
    shape, stored = directory.flattened[key], directory.tensors[key]
    *grid, numel = stored.shape or (0,)
    extents = tuple(whole // max(count, 1) for whole, count in zip(shape, grid, strict=False))
    if (
        len(grid) != len(shape)
        or any(count * extent != whole for count, extent, whole in zip(grid, extents, shape, strict=True))
        or math.prod(extents) != numel
        or math.prod(tuple(grid)) > len(stored.fragments)
    ):
        raise error(
            "UCP-E-SOURCE",
            f"the shape {shape} does not fit the stored one, {stored.shape}",
            at=f"{directory.path}#{key}",
        )

    def flat_of(cell: tuple[int, ...]) -> _Flat:
        def read(start: int, out: NDArray[Any]) -> None:
            directory.verify(key)
            place = (*cell, start)
            directory.read_box(key, place, (*(1,) * len(cell), out.size), out.view(np.uint8))

        return _Flat(stored.dtype, numel, read)

    return FlatSource(
        tuple(
            _FlatBox(Box(tuple(map(int.__mul__, cell, extents)), extents), flat_of(cell), 0)
            for cell in product(*map(range, grid))
        )
    )


def as_reshardable(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of the common state that are others where each state is stored whole, with its parameter."""
    metadata = tree.get("content_metadata")
    noted = {**metadata} if isinstance(metadata, Mapping) else {}
    noted |= {"distrib_optim_sharding_type": _RESHARDABLE, "chained_optim_avoid_prefix": True}
    changed: dict[str, Any] = {"content_metadata": noted}
    optimizer = tree.get("optimizer")
    if isinstance(optimizer, Mapping):
        changed["optimizer"] = {
            key: {**one, _SHARDING: _RESHARDABLE} if isinstance(one, Mapping) and _SHARDING in one else one
            for key, one in optimizer.items()
        }
        if _SHARDING in optimizer:
            changed["optimizer"][_SHARDING] = _RESHARDABLE
    return changed


def read_flat_states(
    directory: DcpDirectory,
    values: Mapping[str, tuple[str, ReadBox]],
    *,
    tensor_parallel: int | None,
    bucket_sizes: Sequence[int | None],
) -> FlatStates | None:
    """Return the states of every parameter that lie in flat buffers; None where there are none, or it is unknown.

    ``values`` are the data type of every tensor of the model and what reads it, by key; ``tensor_parallel`` is the
    degree where that is known, ``bucket_sizes`` are those that buckets may have had where buffers do not say.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE`` for ranks with other hyper-parameters, of two saves.
    """
    objects = {key: match for key in directory.objects if (match := _OBJECT.fullmatch(key))}
    if not objects:
        return None
    buckets = {key: match for key in directory.tensors if (match := _BUCKET.fullmatch(key))}
    flats = _bucket_tensors(directory, buckets) if buckets else _buffer_objects(directory, objects)
    tensors = [
        ModelTensor(key, tensor.dtype, tensor.shape, tuple(Box(f.offset, f.shape) for f in tensor.fragments))
        for key, tensor in directory.tensors.items()
        if key not in buckets
    ]
    sized = _lengths(flats, tuple(bucket_sizes))
    if not sized:
        return None
    for placed in resolve(tensors, sized, tensor_parallel=tensor_parallel):
        sources = _sources(placed, flats)
        if sources is not None and all(_agrees(states, *values[name]) for name, states in sources.items()):
            return FlatStates(sources, _groups(directory, objects), frozenset([*buckets, *objects]))
    return None


# A flat tensor by optimizer, rank, buffer, type of parameters, bucket (None: all of them) and state.
_Flats = dict[tuple[int, int, int, str, int | None, str], _Flat]


def _bucket_tensors(directory: DcpDirectory, matches: Mapping[str, re.Match[str]]) -> _Flats:
    flats: _Flats = {}
    for key, match in matches.items():
        tensor = directory.tensors[key]
        kind = TORCH_DTYPES.get(match["dtype"], ("", 0))[0]

        def read(start: int, out: NDArray[Any], key: str = key) -> None:
            directory.verify(key)
            directory.read_box(key, (start,), out.shape, out.view(np.uint8))

        place = (*_rank(match), int(match["buffer"]), kind, int(match["bucket"]), match["state"])
        flats[place] = _Flat(tensor.dtype, tensor.shape[0] if tensor.shape else 0, read)
    return flats


def _buffer_objects(directory: DcpDirectory, matches: Mapping[str, re.Match[str]]) -> _Flats:
    flats: _Flats = {}
    for key, match in matches.items():
        if match["name"] != _PARAM_STATE:
            continue
        tree = directory.read_tree(key)
        tree = tree[0] if isinstance(tree, list) and len(tree) == 1 else tree
        if not isinstance(tree, Mapping) or tree.get("buckets_coalesced") is not True:
            return {}
        for number, held in tree.items():
            for kinds, states in held.items() if type(number) is int and isinstance(held, Mapping) else ():
                kind = kinds[0] if isinstance(kinds, tuple) else kinds
                for state, stored in states.items() if isinstance(states, Mapping) else ():
                    if isinstance(stored, StoredTensor) and isinstance(kind, TorchDtype):
                        name = TORCH_DTYPES.get(kind.name, ("", 0))[0]
                        flat = _stored(directory, key, stored)
                        flats[*_rank(match), number, name, None, str(state)] = flat
    return flats


def _stored(directory: DcpDirectory, key: str, stored: StoredTensor) -> _Flat:
    if len(stored.shape) != 1 or stored.strides != (1,) or stored.byteorder != "little":
        raise error("UCP-E-SOURCE", "a state of the optimizer is no flat tensor", at=key)

    def read(start: int, out: NDArray[Any]) -> None:
        directory.verify(key)
        target = element_view(out.view(np.uint8), out.itemsize, out.shape)
        directory.read_elements(key, stored, start, target)

    return _Flat(stored.dtype, stored.shape[0], read)


def _rank(match: re.Match[str]) -> _Rank:
    return int(match["chained"] or 0), int(match["rank"])


_Lengths = list[dict[int, list[dict[str, Buffer]]]]


def _lengths(flats: _Flats, bucket_sizes: tuple[int | None, ...]) -> _Lengths:
    """Return bucket lengths by optimizer, rank, chunk and type; empty where states differ in them or one is missing."""
    by_buffer: dict[tuple[int, int, int, str], dict[int | None, dict[str, int]]] = {}
    for (chained, rank, buffer, kind, bucket, state), flat in flats.items():
        by_bucket = by_buffer.setdefault((chained, rank, buffer, kind), {})
        by_bucket.setdefault(bucket, {})[state] = flat.length
    states = {frozenset(held) for by_bucket in by_buffer.values() for held in by_bucket.values()}
    if len(states) != 1 or PARAM not in next(iter(states)):
        return []
    optimizers: dict[int, dict[int, list[dict[str, Buffer]]]] = defaultdict(lambda: defaultdict(list))
    for (chained, rank, _, kind), by_bucket in sorted(by_buffer.items()):
        numbers = sorted(by_bucket, key=lambda number: number or 0)
        if numbers not in ([None], list(range(len(numbers)))):
            return []
        if any(len(set(by_state.values())) != 1 for by_state in by_bucket.values()):
            return []
        chunks = optimizers[chained][rank]
        held = Buffer(
            tuple(next(iter(by_bucket[number].values())) for number in numbers),
            bucket_sizes if numbers == [None] else (),
        )
        # Buffers are numbered over chunks, and within one over types.
        for chunk in chunks:
            if kind not in chunk:
                chunk[kind] = held
                break
        else:
            chunks.append({kind: held})
    if sorted(optimizers) != list(range(len(optimizers))):
        return []
    return [dict(optimizers[number]) for number in range(len(optimizers))]


def _sources(placed: Sequence[Placed], flats: _Flats) -> dict[str, dict[str, tuple[str, FlatSource]]] | None:
    """Return the parts of every state; None where they do not cover an atom exactly."""
    states = sorted({place[-1] for place in flats})
    numbers = _buffer_numbers(flats)
    parts: dict[str, dict[str, dict[Box, _FlatBox]]] = defaultdict(lambda: defaultdict(dict))
    shapes: dict[str, tuple[int, ...]] = {}
    for one in placed:
        tensor = one.parameter.tensor
        shapes[tensor.name] = tensor.shape
        buffer = numbers[one.chained, one.rank, tensor.dtype][one.chunk]
        for state in states:
            key = (one.chained, one.rank, buffer, tensor.dtype)
            flat = flats.get((*key, one.bucket, state)) or flats.get((*key, None, state))
            if flat is None:
                return None
            start = one.offset
            for box in one.parameter.boxes:
                # Tensor-parallel ranks, and a last stage that shares its embedding, have copies: the first counts.
                parts[tensor.name][state].setdefault(box, _FlatBox(box, flat, start))
                start += math.prod(box.shape)
    for name, shape in shapes.items():
        if sum(math.prod(box.shape) for box in parts[name][states[0]]) != math.prod(shape):
            return None
    return {
        name: {
            state: (next(iter(held.values())).flat.dtype, FlatSource(tuple(held.values())))
            for state, held in by_state.items()
        }
        for name, by_state in parts.items()
    }


def _buffer_numbers(flats: _Flats) -> dict[tuple[int, int, str], list[int]]:
    """Return the numbers of a rank's buffers of one type, by chunk."""
    numbers_of: dict[tuple[int, int, str], set[int]] = defaultdict(set)
    for chained, rank, buffer, kind, *_ in flats:
        numbers_of[chained, rank, kind].add(buffer)
    return {key: sorted(numbers) for key, numbers in numbers_of.items()}


def _agrees(states: Mapping[str, tuple[str, FlatSource]], value_type: str, read: ReadBox) -> bool:
    """Return whether the first elements of every part are the value's."""
    kind, source = states[PARAM]
    for part in source.parts:
        box = _sample(part.box)
        copy, value = np.empty(box.shape, dtype(kind).numpy), np.empty(box.shape, dtype(value_type).numpy)
        source(box, copy)
        read(box, value)
        if copy.astype(value.dtype).tobytes() != value.tobytes():
            return False
    return True


def _sample(box: Box) -> Box:
    """Return a corner of a box with few elements."""
    shape, left = [], _SAMPLE
    for extent in reversed(box.shape):
        shape.append(min(extent, left))
        left = max(1, left // max(extent, 1))
    return Box(box.offset, tuple(reversed(shape)))


def _groups(directory: DcpDirectory, objects: Mapping[str, re.Match[str]]) -> dict[Any, Any]:
    """Return what ``fully_reshardable`` would have in the common state: every rank has the same."""
    groups: dict[int, dict[str, Any]] = {}
    for key, match in sorted(objects.items()):
        if match["name"] in (_PARAM_STATE, "per_bucket_numel", "per_bucket_numel_unpadded"):
            continue
        directory.verify(key)
        value: Any = directory.read_object(key)
        value = value[0] if isinstance(value, list) and len(value) == 1 else value
        held = groups.setdefault(int(match["chained"] or 0), {})
        if spelled(held.setdefault(match["name"], value)) != spelled(value):
            raise error("UCP-E-SOURCE", "another optimizer than of the first rank: from two saves", at=key)
    entries = {number: {**held, _SHARDING: _RESHARDABLE} for number, held in groups.items()}
    return entries if len(entries) > 1 else entries.get(0, {})
