"""Round trips: whole, by boxes, by layouts, into any memory; content digests (SPEC 11.3, 17.2, 17.3)."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import (
    MIB,
    STORAGES,
    State,
    Tensor,
    fresh_url,
    read_all,
    result_or_refusal,
    save,
    states,
    tensors,
)
from tests.geometry.strategies import layouts
from ucpformat.errors import LayoutError, UcpError
from ucpformat.geometry import Scale, extract, lower
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.arithmetic import scaled
from ucpformat.validation import validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

MEDIA = ("local", "memory")
SCALED = {"float16", "bfloat16", "float32", "float64", "complex64", "complex128"}


@given(
    st.data(),
    states(),
    st.sampled_from(STORAGES),
    st.sampled_from(MEDIA),
    st.sampled_from([16, 40, 97, 4096]),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    state: State,
    storage: Storage,
    medium: str,
    chunk_bytes: int,
) -> None:
    """UCP-R-004, UCP-R-005, UCP-D-036, UCP-D-092, UCP-D-093: whole, by boxes, by indices; and it is valid."""
    url = fresh_url(medium, tmp_path_factory.mktemp("round"))
    save(url, state, storage=storage, chunk_bytes=chunk_bytes, step=7)
    assert validate(url, workers=2) == []
    with open_checkpoint(url, workers=2) as checkpoint:
        assert list(checkpoint) == sorted({atom for atom, _ in state}, key=str.encode)
        assert len(checkpoint) == len(list(checkpoint))
        found = read_all(checkpoint)
        assert found.keys() == state.keys()
        for (atom, slot), tensor in state.items():
            assert (found[atom, slot].dtype, found[atom, slot].shape) == (
                tensor.data.dtype,
                tensor.data.shape,
            )
            assert found[atom, slot].tobytes() == tensor.data.tobytes()
            view = checkpoint[atom][slot]
            for _ in range(3):
                index = data.draw(indices(tensor.data.shape))
                expected = tensor.data[index]
                part = view[index]
                assert part.shape == expected.shape
                assert part.tobytes() == expected.tobytes()


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Basic numpy indices: integers, forward slices with any bounds, an ellipsis, fewer than dimensions."""
    items: list[Any] = []
    for extent in shape[: draw(st.integers(0, len(shape)))]:
        if extent and draw(st.booleans()):
            items.append(draw(st.integers(-extent, extent - 1)))
        else:
            bound = st.none() | st.integers(-extent - 2, extent + 2)
            items.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), ...)
        # numpy lets an ellipsis stand for the dimensions that are left; items behind it are the last ones.
        place = items.index(...)
        for number, item in enumerate(items[place + 1 :]):
            extent = shape[len(shape) - (len(items) - place - 1) + number]
            if isinstance(item, int) and not -extent <= item < extent:
                items[place + 1 + number] = slice(None)
    return tuple(items)


@given(st.data(), tensors(), st.sampled_from(STORAGES))
def test_a_layout_reads_what_its_lowering_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, tensor: Tensor, storage: Storage
) -> None:
    """Procedures 17.2 and 17.3: local tensors are those that the pieces say, at every coordinate."""
    layout = data.draw(layouts(tensor.data.shape))
    path = tmp_path_factory.mktemp("layout") / "c"
    save(path, {("a", "value"): tensor}, storage=storage, chunk_bytes=32)
    flat = tensor.data.reshape(-1)
    names = [axis.name for axis in layout.mesh.axes]
    with open_checkpoint(path, workers=1) as checkpoint:
        lowering = lower(layout, tensor.data.shape)
        kind = DTYPES[tensor.dtype]
        scales = [step.exponent for step in layout.steps if isinstance(step, Scale)]
        if None in scales or (scales and kind.name not in SCALED):
            with pytest.raises(LayoutError):
                checkpoint.read("a", layout=layout)
            return
        for coordinate in np.ndindex(*(axis.size for axis in layout.mesh.axes)):
            if isinstance(result_or_refusal(partial(lowering.at, coordinate)), UcpError):
                continue  # some meshes have holes
            local = lowering.at(coordinate)
            out = None
            if local is not None and data.draw(st.booleans()):
                out = np.zeros((*local.shape, 2), tensor.data.dtype)[..., 1]
            where = dict(zip(names, coordinate, strict=True))
            found = result_or_refusal(partial(checkpoint.read, "a", layout=layout, coord=where, out=out))
            if local is None:
                assert found is None
                continue
            expected = np.zeros(local.size, tensor.data.dtype)
            for move in extract(local, lowering.view):
                for cell in np.ndindex(*move.shape):
                    source = move.source.offset + sum(map(int.__mul__, cell, move.source.strides))
                    target = move.target.offset + sum(map(int.__mul__, cell, move.target.strides))
                    expected[target] = flat[source]
            wanted: object = expected
            for exponent in scales:
                wanted = result_or_refusal(partial(scaled, expected, kind, exponent or 0))
            if isinstance(wanted, UcpError):
                assert isinstance(found, UcpError)
                assert found.code == wanted.code == "UCP-E-INEXACT"
                continue
            assert not isinstance(found, UcpError)
            assert isinstance(wanted, np.ndarray)
            assert found is not None
            assert out is None or found is out
            assert found.shape == local.shape
            assert found.tobytes() == wanted.tobytes()


@given(tensors(), st.sampled_from(STORAGES), st.data())
def test_destinations_of_any_strides_are_filled(
    tmp_path_factory: pytest.TempPathFactory, tensor: Tensor, storage: Storage, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("strides") / "c"
    save(path, {("a", "value"): tensor}, storage=storage, chunk_bytes=48)
    ndim = tensor.data.ndim
    order = data.draw(st.permutations(range(ndim)))
    steps = data.draw(st.lists(st.sampled_from([1, 2, -1]), min_size=ndim, max_size=ndim))
    padded = tuple(tensor.data.shape[dim] * abs(steps[dim]) for dim in order)
    memory = np.zeros(padded, tensor.data.dtype).transpose([order.index(dim) for dim in range(ndim)])
    selected: Any = (*(slice(None, None, step) for step in steps), ...)
    out = memory[selected]
    with open_checkpoint(path, workers=1) as checkpoint:
        checkpoint["a"]["value"].read(out)
        assert out.tobytes() == tensor.data.tobytes()
        out[...] = np.zeros((), out.dtype)
        checkpoint.read("a", out=out)
        assert out.tobytes() == tensor.data.tobytes()


@given(st.data())
def test_content_digests_are_those_of_the_logical_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """UCP-D-038: the digest depends on neither storage, grid, compressor, nor the order of writing."""
    tensor = data.draw(tensors())
    chunk_bytes = data.draw(st.sampled_from([16, 33, 64, 1000]))
    path = tmp_path_factory.mktemp("content") / "c"
    with CheckpointWriter(
        path,
        [AtomSpec("a", {"value": SlotSpec(tensor.dtype, tensor.data.shape, None, tensor.compressor)})],
        storage=data.draw(st.sampled_from(STORAGES)),
        chunk_bytes=chunk_bytes,
        workers=1,
    ) as writer:
        grid = writer.grid("a", "value")
        for chunk in data.draw(st.permutations(range(grid.count))):
            box = grid.chunk_box(grid.index_of(chunk))
            part = tensor.data[tuple(map(slice, box.offset, box.stop))]
            writer.write("a", "value", part, offset=box.offset)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint["a"].atom.slot("value").content == content_digest(tensor.data.tobytes())


def content_digest(data: bytes) -> str:
    """SPEC 11.3, written down a second time, with zlib-like arithmetic left to the table-free loop."""
    values = b"".join(
        castagnoli(data[start : start + MIB]).to_bytes(4, "little") for start in range(0, len(data), MIB)
    )
    return "crc32c-tree:" + hashlib.sha256(values).hexdigest()


def castagnoli(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def test_castagnoli_is_that_of_the_rfc() -> None:
    """The vectors of RFC 3720, appendix B.4."""
    assert castagnoli(bytes(32)) == 0x8A9136AA
    assert castagnoli(bytes([255] * 32)) == 0x62A8AB43
    assert castagnoli(bytes(range(32))) == 0x46DD794E
