"""Writing: what is refused and when, boxes from many threads, what lies where (SPEC 16, 17.4)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import (
    BLOSC,
    GZIP,
    STORAGES,
    ZSTD,
    Forgery,
    RawTable,
    State,
    Tensor,
    bits,
    declare,
    guillotine,
    region,
    save,
    snapshot,
    states,
    tensors,
)
from tests.geometry.strategies import shapes
from ucpformat.errors import UcpError
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard, chunk_grid
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.model.envelope import Extension
from ucpformat.model.root import Storage
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.store import Durability
from ucpformat.validation import validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

INT8 = {"value": SlotSpec("int8", (40,))}


@given(st.data())
def test_boxes_from_many_threads_make_the_tensor(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """UCP-D-101, UCP-D-103, UCP-D-104, UCP-D-106, UCP-D-107, UCP-D-109, UCP-D-116, UCP-D-117, UCP-D-118."""
    shape = data.draw(shapes(max_elements=400))
    entry = DTYPES[data.draw(st.sampled_from(["int8", "bfloat16", "complex128"]))]
    tensor = bits(data.draw(st.integers(0, 99)), shape, entry)
    boxes = data.draw(guillotine(Box.whole(shape), data.draw(st.integers(0, 8))))
    path = tmp_path_factory.mktemp("boxes") / "c"
    with (
        CheckpointWriter(
            path, [AtomSpec("a", {"value": SlotSpec(entry.name, shape)})], chunk_bytes=64, workers=2
        ) as writer,
        ThreadPoolExecutor(3) as pool,
    ):
        list(pool.map(lambda box: writer.write("a", "value", tensor[region(box)], offset=box.offset), boxes))
    assert validate(path, workers=2) == []
    with open_checkpoint(path, workers=1) as checkpoint:
        view = checkpoint["a"]["value"]
        assert view.read().tobytes() == tensor.tobytes()
        for box in data.draw(guillotine(Box.whole(shape), 3)):
            assert view[region(box)].tobytes() == tensor[region(box)].tobytes()


@given(st.data(), st.sampled_from(["gap", "overlap", "twice"]))
def test_a_gap_or_an_overlap_is_found_at_commit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, fault: str
) -> None:
    """UCP-D-101: zeros count as much as anything else."""
    shape = data.draw(shapes(max_elements=100).filter(lambda shape: 0 not in shape))
    tensor = np.full(shape, data.draw(st.sampled_from([0, 1])), np.int16)
    boxes = data.draw(guillotine(Box.whole(shape), data.draw(st.integers(0, 4))))
    match fault:
        case "gap":
            boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
        case "overlap":
            boxes.append(Box((0,) * len(shape), (1,) * len(shape)))
        case _:
            boxes.insert(0, Box.whole(shape))
    path = tmp_path_factory.mktemp("fault") / "c"
    writer = CheckpointWriter(
        path, [AtomSpec("a", {"value": SlotSpec("int16", shape)})], chunk_bytes=16, workers=1
    )
    for box in boxes:
        writer.write("a", "value", tensor[region(box)], offset=box.offset)
    with pytest.raises(UcpError) as refusal:
        writer.commit()
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-COVER", "a/value")
    assert not path.exists()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_nothing_is_written_twice(tmp_path: Path, storage: Storage, first: int, second: int) -> None:
    """UCP-W-006 for objects; for zero entries, which have none, the same at commit."""
    writer = CheckpointWriter(tmp_path / "c", [AtomSpec("a", INT8)], storage=storage)
    writer.write("a", "value", np.full(40, first, np.int8))
    codes = []
    try:
        writer.write("a", "value", np.full(40, second, np.int8))
        writer.commit()
    except UcpError as refusal:
        codes.append(refusal.code)
        writer.abort()
    assert codes in (["UCP-E-COVER"], ["UCP-E-EXISTS"])
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("storage", "compressor"), [("plain", None), ("plain", GZIP), ("packed", GZIP), ("packed", ZSTD)]
)
def test_parts_of_chunks_are_refused_where_chunks_are_whole(
    tmp_path: Path, storage: Storage, compressor: Compressor | None
) -> None:
    """UCP-D-102, UCP-D-115."""
    spec = AtomSpec("a", {"value": SlotSpec("int8", (40,), None, compressor)})
    with CheckpointWriter(tmp_path / "c", [spec], storage=storage, chunk_bytes=16) as writer:
        data = np.arange(40, dtype=np.int8)
        with pytest.raises(UcpError, match="UCP-E-STORE"):
            writer.write("a", "value", data[:5], offset=(0,))
        for start in (0, 14, 28):
            writer.write("a", "value", data[start : start + 14], offset=(start,))
    assert validate(tmp_path / "c") == []


@given(states(), st.sampled_from([16, 64, 5000]))
def test_packs_are_what_the_specification_says(
    tmp_path_factory: pytest.TempPathFactory, state: State, chunk_bytes: int
) -> None:
    """UCP-D-099, UCP-D-105, UCP-D-107, UCP-D-108, UCP-D-113, UCP-D-116, UCP-D-118, read with no code of ours."""
    path = tmp_path_factory.mktemp("packs") / "c"
    save(path, state, chunk_bytes=chunk_bytes)
    forged = Forgery(path)
    packs = forged.document("packs")["packs"]
    unused = [bytearray((path / pack["key"]).read_bytes()) for pack in packs]
    assert [len(content) for content in unused] == [pack["length"] for pack in packs]
    if not state:
        assert packs == []
        return
    table = forged.table()
    grids = [
        chunk_grid(tensor.data.shape, tensor.data.dtype.itemsize, chunk_bytes)
        for _, tensor in sorted(state.items(), key=lambda item: item[0])
    ]
    assert len(table.counts) == sum(grid.count for grid in grids)
    assert {row[0] for row in table.rows} == set(range(len(packs)))
    rows, counts = iter(table.rows), iter(table.counts)
    for grid in grids:
        mine = [next(rows) for _ in range(grid.count) for _ in range(next(counts))]
        ends = {(container, offset + length) for container, _, offset, length, _ in mine}
        for container, _, offset, length, _ in mine:
            assert offset % 64 == 0 or (container, offset) in ends
            assert offset + length <= len(unused[container])
            unused[container][offset : offset + length] = bytes(length)
    assert not any(map(any, unused))


def test_long_segments_are_aligned_to_pages(tmp_path: Path) -> None:
    """UCP-D-107."""
    sizes = [65_535, 65_536, 1, 100_000]
    state = {(f"a{n}", "value"): Tensor(np.ones(size, np.int8), "int8") for n, size in enumerate(sizes)}
    save(tmp_path / "c", state, workers=1)
    rows = Forgery(tmp_path / "c").table().rows
    assert [(row[3], row[2] % (4096 if row[3] >= 65536 else 64)) for row in rows] == [(s, 0) for s in sizes]
    assert validate(tmp_path / "c") == []


@given(tensors(), st.sampled_from([16, 64, 5000]))
def test_plain_chunks_are_whole_padded_objects(
    tmp_path_factory: pytest.TempPathFactory, tensor: Tensor, chunk_bytes: int
) -> None:
    """UCP-D-093 to UCP-D-096, UCP-D-098, UCP-D-115."""
    path = tmp_path_factory.mktemp("plain") / "c"
    save(path, {("a", "value"): tensor}, storage="plain", chunk_bytes=chunk_bytes)
    grid = chunk_grid(tensor.data.shape, tensor.data.dtype.itemsize, chunk_bytes)
    whole = int(np.prod(grid.chunk_shape, dtype=np.int64)) * tensor.data.dtype.itemsize
    table = Forgery(path).table()
    rows = iter(table.rows)
    for chunk in range(grid.count):
        index = grid.index_of(chunk)
        file = path / "atoms" / "a" / "value" / grid.key(index)
        part = tensor.data[region(grid.chunk_box(index))]
        if not any(part.tobytes()):
            assert table.counts[chunk] == 0
            assert not file.exists()
            continue
        content = file.read_bytes()
        assert next(rows) == [0xFFFFFFFF, 0, 0, len(content), 0]
        if tensor.compressor is None:
            padded = np.zeros(grid.chunk_shape, tensor.data.dtype)
            padded[tuple(map(slice, part.shape))] = part
            assert content[:-4] == padded.tobytes()
            assert len(content) == whole + 4
    assert next(rows, None) is None
    array = json.loads((path / "atoms" / "a" / "value" / "zarr.json").read_bytes())
    assert array["chunk_grid"]["configuration"]["chunk_shape"] == list(grid.chunk_shape)
    assert array["fill_value"] in (0, False, [0, 0], "0x00")
    for group in ("atoms/zarr.json", "atoms/a/zarr.json"):
        assert (path / group).read_bytes() == b'{"zarr_format":3,"node_type":"group","attributes":{}}'


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn"])
@pytest.mark.parametrize("storage", STORAGES)
def test_unused_bits_are_cleared(tmp_path: Path, name: str, storage: Storage) -> None:
    """UCP-D-037: sign-extended nibbles, as ml_dtypes makes them, are stored with zeros above."""
    entry = DTYPES[name]
    raw = np.arange(64, dtype=np.uint8) * 4 + 3
    save(tmp_path / "c", {("a", "value"): Tensor(raw.view(entry.numpy), name)}, storage=storage)
    assert raw[1] == 7
    assert raw[63] == 255
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint["a"]["value"].read().view(np.uint8).tolist() == (raw & 15).tolist()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("durability", ["fsync", "none"])
def test_submitted_slots_are_written_at_commit(
    tmp_path: Path, storage: Storage, durability: Durability
) -> None:
    """Small slots go together, large ones in chunks; the memory of what is written, not submitted, is free at once."""
    told: list[int] = []
    state = {(f"a{n}", "value"): Tensor(bits(n, (n + 1,), DTYPES["int32"]), "int32") for n in range(300)}
    state["cut", "value"] = Tensor(bits(1, (300_000,), DTYPES["float32"]), "float32")
    state["big", "value"] = Tensor(bits(1, (1200, 1024), DTYPES["float32"]), "float32")
    with CheckpointWriter(
        tmp_path / "c",
        declare(state),
        storage=storage,
        chunk_bytes=1 << 20,
        workers=2,
        progress=told.append,
        durability=durability,
    ) as writer:
        for number, ((atom, slot), tensor) in enumerate(state.items()):
            if number % 7:
                writer.submit(atom, slot, tensor.data)
            else:
                memory = tensor.data.copy()
                writer.write(atom, slot, memory)
                memory[:] = 0
        with pytest.raises(UcpError, match="UCP-E-MISMATCH"):
            writer.submit("a0", "value", np.zeros(2, np.int32))
    assert sum(told) == sum(tensor.data.nbytes for tensor in state.values())
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        for (atom, slot), tensor in state.items():
            assert checkpoint[atom][slot].read().tobytes() == tensor.data.tobytes()


def test_large_slots_are_written_by_several_threads(tmp_path: Path) -> None:
    data = bits(1, (1200, 1024), DTYPES["float32"])
    save(tmp_path / "c", {("a", "value"): Tensor(data, "float32")}, chunk_bytes=1 << 20)
    assert validate(tmp_path / "c") == []


MESH = Mesh((MeshAxis("tp", 2),))


@pytest.mark.parametrize(
    ("code", "atoms", "options"),
    [
        pytest.param("UCP-E-NAME", [AtomSpec("a", INT8), AtomSpec("a", INT8)], {}, id="an atom twice"),
        pytest.param("UCP-E-NAME", [AtomSpec("", INT8)], {}, id="no name"),
        pytest.param("UCP-E-NAME", [AtomSpec("a\0", INT8)], {}, id="a control character"),
        pytest.param("UCP-E-NAME", [AtomSpec("a", INT8, ("b",)), AtomSpec("b", INT8)], {}, id="an alias, a name"),
        pytest.param("UCP-E-NAME", [AtomSpec("a", INT8, ("a",))], {}, id="an alias of itself"),
        pytest.param("UCP-E-KEY", [AtomSpec("a", {"v/w": SlotSpec("int8", ())})], {}, id="slot with a slash"),
        pytest.param("UCP-E-KEY", [AtomSpec("a", {"..": SlotSpec("int8", ())})], {}, id="slot above"),
        pytest.param("UCP-E-KEY", [AtomSpec("a", {"v" * 65: SlotSpec("int8", ())})], {}, id="slot name too long"),
        pytest.param(
            "UCP-E-KEY", [AtomSpec("a", {"v": SlotSpec("int8", ()), "V": SlotSpec("int8", ())})], {}, id="folding slots"
        ),
        pytest.param("UCP-E-SCHEMA", [AtomSpec("a", {})], {}, id="no slot"),
        pytest.param("UCP-E-DTYPE", [AtomSpec("a", {"value": SlotSpec("float33", ())})], {}, id="no such type"),
        pytest.param("UCP-E-SHAPE", [AtomSpec("a", {"value": SlotSpec("int8", (1,) * 33)})], {}, id="33 dimensions"),
        pytest.param("UCP-E-SHAPE", [AtomSpec("a", {"value": SlotSpec("int16", (2**52,))})], {}, id="2^53 bytes"),
        pytest.param("UCP-E-SHAPE", [AtomSpec("a", {"value": SlotSpec("int8", (0, 2**53))})], {}, id="0 counts as 1"),
        pytest.param("UCP-E-SHAPE", [AtomSpec("a", {"value": SlotSpec("int8", (-1,))})], {}, id="negative"),
        pytest.param("UCP-E-LIMIT", [AtomSpec("a", INT8)], {"chunk_bytes": 15}, id="chunks too small"),
        pytest.param("UCP-E-LIMIT", [AtomSpec("a", INT8)], {"chunk_bytes": 2**30 + 1}, id="chunks too large"),
        pytest.param(
            "UCP-E-SCHEMA",
            [AtomSpec("a", {"value": SlotSpec("int8", (), None, Compressor("gzip", {"level": 10}))})],
            {},
            id="no such level",
        ),
        pytest.param(
            "UCP-E-SCHEMA",
            [AtomSpec("a", {"value": SlotSpec("int8", (), None, Compressor("blosc", {"clevel": 1}))})],
            {},
            id="half a configuration",
        ),
        pytest.param(
            "UCP-E-LAYOUT",
            [AtomSpec("a", {"value": SlotSpec("int8", (3,), Layout(MESH, (Shard("tp", 1),)))})],
            {},
            id="a layout that does not fit",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("storage", STORAGES)
def test_what_no_reader_takes_is_refused_before_anything_is_written(
    tmp_path: Path, storage: Storage, code: str, atoms: list[AtomSpec], options: dict[str, Any]
) -> None:
    """UCP-S-005, of UCP-D-015, UCP-D-017, UCP-D-023, UCP-D-028, UCP-D-030, UCP-D-033, UCP-D-034 and UCP-D-035."""
    with pytest.raises(UcpError) as refusal:
        CheckpointWriter(tmp_path / "c", atoms, storage=storage, **options)
    assert refusal.value.code == code
    assert not (tmp_path / "c").exists()


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize("where", ["atom", "slot", "state"])
def test_what_turns_out_at_commit_publishes_nothing(tmp_path: Path, where: str) -> None:
    """UCP-S-005: annotations nest too deep."""
    deep = {"org.example": nested(64)}
    spec = AtomSpec(
        "a",
        {"value": SlotSpec("int8", (), annotations=deep if where == "slot" else {})},
        annotations=deep if where == "atom" else {},
    )
    writer = CheckpointWriter(tmp_path / "c", [spec])
    writer.write("a", "value", np.array(1, np.int8))
    if where == "state":
        writer.state_annotations.update(deep)
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        writer.commit()
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("atom", "data", "offset"),
    [
        pytest.param("b", np.zeros(40, np.int8), None, id="not declared"),
        pytest.param("a", np.zeros(40, np.int16), None, id="another type"),
        pytest.param("a", np.zeros(40, np.uint8), None, id="another type of the same width"),
        pytest.param("a", np.zeros(39, np.int8), None, id="another shape"),
        pytest.param("a", np.zeros((40, 1), np.int8), None, id="more dimensions"),
        pytest.param("a", np.zeros((4, 1), np.int8), (0, 0), id="a box with more dimensions"),
        pytest.param("a", np.zeros(5, np.int8), (36,), id="a box that leaves the shape"),
    ],
)
def test_data_that_were_not_declared_are_refused(
    tmp_path: Path, atom: str, data: Any, offset: tuple[int, ...] | None
) -> None:
    writer = CheckpointWriter(tmp_path / "c", [AtomSpec("a", INT8)])
    with pytest.raises(UcpError) as refusal:
        writer.write(atom, "value", data, offset)
    assert (refusal.value.code, refusal.value.at) == ("UCP-E-MISMATCH", f"{atom}/value")
    writer.abort()
    assert not (tmp_path / "c").exists()


def test_optimizers_refer_to_declared_atoms_once(tmp_path: Path) -> None:
    """UCP-D-086, UCP-D-087."""
    writer = CheckpointWriter(tmp_path / "c", [AtomSpec("a", INT8)])
    with pytest.raises(UcpError, match="UCP-E-REFERENCE"):
        writer.set_optimizer("o", [(["b"], {})])
    with pytest.raises(UcpError, match="UCP-E-NAME"):
        writer.set_optimizer("o", [(["a"], {}), (["a"], {})])
    with pytest.raises(UcpError, match="UCP-E-OBJECT"):
        writer.set_value("v", object())
    writer.abort()


def test_a_state_that_is_encoded_already_is_taken_over(tmp_path: Path) -> None:
    state = StateDocument(
        {"epoch": {"$tuple": [1]}}, {"o": Optimizer((ParameterGroup(("a",), {"lr": 0.5}),))}, {}, {"x": 1}
    )
    with CheckpointWriter(
        tmp_path / "c", [AtomSpec("a", INT8)], extensions={"org.example.x": Extension(must_understand=False)}
    ) as writer:
        writer.set_state(state)
        writer.write("a", "value", np.zeros(40, np.int8))
        assert writer.dtype("a", "value").name == "int8"
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint.state == state
        assert list(checkpoint.root.envelope.extensions) == ["org.example.x"]


def test_atoms_are_spread_over_parts(tmp_path: Path) -> None:
    """UCP-D-024 and UCP-D-026 to UCP-D-029 across parts, with three atoms a part."""
    names = [f"layers.{n}.weight" for n in range(10)]
    layout = Layout(MESH, (Shard("tp", 0),))
    specs = [
        AtomSpec(
            name,
            {"value": SlotSpec("int16", (2,), layout), "step": SlotSpec("int16", ())},
            (f"alias.{name}",),
        )
        for name in reversed(names)
    ]
    with (
        patch("ucpformat.writer._ATOMS_PER_PART", 3),
        CheckpointWriter(tmp_path / "c", specs, storage="plain", step=5) as writer,
    ):
        for number, name in enumerate(names):
            writer.write(name, "value", np.full(2, number, np.int16))
            writer.write(name, "step", np.array(number, np.int16))
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert [part.atoms for part in checkpoint.root.parts] == [3, 3, 3, 1]
        assert list(checkpoint) == names
        assert [int(checkpoint[name]["value"][1]) for name in names] == list(range(10))
        assert int(checkpoint["alias.layers.7.weight"]["step"].read()) == 7
        assert checkpoint.root.progress is not None
        assert checkpoint.root.progress.step == 5


def test_the_same_state_gives_the_same_bytes(tmp_path: Path) -> None:
    """SPEC 16.1: nothing on disk depends on who wrote it, but the attempt's name."""
    state = {("a", "value"): Tensor(bits(1, (30, 7), DTYPES["float16"]), "float16", BLOSC)}
    for name in ("x", "y"):
        save(tmp_path / name, state, storage="plain", chunk_bytes=100, attempt="first")
    assert snapshot(tmp_path / "x") == snapshot(tmp_path / "y")
    assert isinstance(Forgery(tmp_path / "x").table(), RawTable)
