"""Checkpoints as Zarr: plain ones open without us, packed ones through the view (SPEC 16.3)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

from tests.builders import BLOSC, GZIP, STORAGES, ZSTD, State, Tensor, bits, fresh_url, region, save, states
from ucpformat.geometry import Box
from ucpformat.model.dtype import DTYPES, EXTENSION_DTYPES
from ucpformat.model.root import Storage
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec
from ucpformat.zarr_view import UcpZarrStore, zarr_store

EXTENSIONS = {entry.name for entry in EXTENSION_DTYPES}
SHAPES = ((), (7,), (0, 3), (9, 5), (3, 1, 4))


def everything() -> State:
    """Every data type in every shape, some compressed, some of whose chunks are zero."""
    state: dict[tuple[str, str], Tensor] = {}
    for number, (name, entry) in enumerate(DTYPES.items()):
        for place, shape in enumerate(SHAPES):
            data = bits(number * 10 + place, shape, entry).copy()
            if data.ndim == 2:
                data[5:7].view(np.uint8)[...] = 0
            compressor = (None, GZIP, ZSTD, BLOSC)[(number + place) % 4]
            state[name, f"s{place}"] = Tensor(data, name, compressor)
    return state


# Newer zarr-pythons load entry points: a package that is not installed has none.
ALONE = """
import importlib.metadata, sys
distributions = importlib.metadata.distributions
importlib.metadata.distributions = lambda **asked: (
    found for found in distributions(**asked) if found.metadata["Name"] != "ucpformat"
)
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "ucpformat":
            raise ImportError("this test does without " + name)
sys.meta_path.insert(0, Blocker())
try:
    import ucpformat
except ImportError:
    pass
else:
    raise SystemExit("the blocker does not block")
"""

ZARR = """
import zarr
group = zarr.open_group(sys.argv[1] + "/atoms", mode="r")
for line in sys.stdin:
    atom, slot = line.split()
    print(atom, slot, group[atom][slot][...].tobytes().hex())
"""

TENSORSTORE = """
import tensorstore
for line in sys.stdin:
    atom, slot = line.split()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{sys.argv[1]}/atoms/{atom}/{slot}/"}}
    print(atom, slot, tensorstore.open(spec, open=True, read=True).result().read().result().tobytes().hex())
"""


@pytest.mark.parametrize(
    ("program", "types"),
    [
        pytest.param(ZARR, [name for name in DTYPES if name not in EXTENSIONS], id="zarr-python"),
        pytest.param(TENSORSTORE, list(DTYPES), id="TensorStore"),
    ],
)
def test_plain_checkpoints_are_read_without_us(tmp_path: Path, program: str, types: list[str]) -> None:
    """UCP-D-092 to UCP-D-096: by libraries that have never heard of the format, in a process without it."""
    state = {place: tensor for place, tensor in everything().items() if place[0] in types}
    save(tmp_path / "c", state, storage="plain", chunk_bytes=48)
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE + program, str(tmp_path / "c")],
        input="\n".join(" ".join(place) for place in state),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = {tuple(line.split()[:2]): [*line.split(), ""][2] for line in run.stdout.splitlines()}
    assert found == {place: tensor.data.tobytes().hex() for place, tensor in state.items()}


@pytest.mark.parametrize("flip", [0, 4, -1])
@pytest.mark.parametrize("program", [ZARR, TENSORSTORE], ids=["zarr-python", "TensorStore"])
def test_strangers_find_a_flipped_bit(tmp_path: Path, program: str, flip: int) -> None:
    """SPEC 16.3: that is what Zarr's crc32c codec is for."""
    save(tmp_path / "c", {("a", "value"): Tensor(np.arange(1, 9, dtype=np.int32), "int32")}, storage="plain")
    chunk = tmp_path / "c" / "atoms" / "a" / "value" / "c" / "0"
    data = bytearray(chunk.read_bytes())
    data[flip] ^= 1
    chunk.write_bytes(data)
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE + program, str(tmp_path / "c")],
        input="a value",
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "checksum" in run.stderr or "Digest mismatch" in run.stderr


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("medium", ["local", "memory"])
def test_the_view_serves_every_type_of_either_storage(tmp_path: Path, storage: Storage, medium: str) -> None:
    """Extension types through the entry points of this package."""
    state = everything()
    url = fresh_url(medium, tmp_path)
    save(url, state, storage=storage, chunk_bytes=48)
    store = zarr_store(url)
    group = zarr.open_group(store, mode="r")
    assert sorted(group.group_keys()) == sorted({atom for atom, _ in state})
    for (atom, slot), tensor in state.items():
        array = group[f"{atom}/{slot}"]
        assert isinstance(array, zarr.Array)
        assert array.shape == tensor.data.shape
        assert np.asarray(array[...]).tobytes() == tensor.data.tobytes()
    store.close()


@given(states(), st.sampled_from(STORAGES), st.data())
def test_the_view_gives_parts(
    tmp_path_factory: pytest.TempPathFactory, state: State, storage: Storage, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("view") / "c"
    save(path, state, storage=storage, chunk_bytes=40)
    store = zarr_store(path)
    prefixes = {(stored.atom.name, stored.slot.name): stored.atom.key for stored in store._slots.values()}
    group = zarr.open_group(store, mode="r")
    for (atom, slot), tensor in state.items():
        array = group[f"{prefixes[atom, slot]}/{slot}"]
        assert isinstance(array, zarr.Array)
        shape = tensor.data.shape
        offset = tuple(data.draw(st.integers(0, extent)) for extent in shape)
        box = Box(
            offset,
            tuple(data.draw(st.integers(0, n - first)) for n, first in zip(shape, offset, strict=True)),
        )
        assert np.asarray(array[region(box)]).tobytes() == tensor.data[region(box)].tobytes()
    store.close()


def test_boxed_chunks_are_assembled_and_padded(tmp_path: Path) -> None:
    data = np.arange(35, dtype=np.int16).reshape(7, 5)
    spec = AtomSpec("a", {"value": SlotSpec("int16", (7, 5))})
    with CheckpointWriter(tmp_path / "c", [spec], chunk_bytes=30) as writer:
        writer.write("a", "value", data[:, :2], offset=(0, 0))
        writer.write("a", "value", data[:, 2:], offset=(0, 2))
    with zarr_store(tmp_path / "c") as store:
        array = zarr.open_array(store, path="a/value", mode="r")
        assert array.chunks == (3, 5)
        assert np.array_equal(np.asarray(array[...]), data)
        last = get(store, "a/value/c/2/0")
        assert last == data[6:].tobytes() + bytes(20)


def get(store: UcpZarrStore, key: str, request: Any = None) -> bytes | None:
    found = asyncio.run(store.get(key, default_buffer_prototype(), request))
    return None if found is None else found.to_bytes()


def listed(call: Callable[[], Any]) -> list[str]:
    async def collect() -> list[str]:
        return [key async for key in call()]

    return asyncio.run(collect())


@pytest.fixture
def store(tmp_path: Path) -> UcpZarrStore:
    save(
        tmp_path / "c",
        {
            ("a", "value"): Tensor(np.arange(12, dtype=np.int8).reshape(2, 6), "int8"),
            ("b", "step"): Tensor(np.array(7, np.int64), "int64"),
        },
        chunk_bytes=16,
    )
    return zarr_store(tmp_path / "c")


def test_keys_and_listings(store: UcpZarrStore) -> None:
    keys = [
        "zarr.json",
        "a/zarr.json",
        "b/zarr.json",
        "a/value/zarr.json",
        "a/value/c/0/0",
        "b/step/zarr.json",
        "b/step/c",
    ]
    assert listed(store.list) == keys
    assert listed(lambda: store.list_prefix("a/value/")) == ["a/value/zarr.json", "a/value/c/0/0"]
    assert listed(lambda: store.list_dir("")) == ["zarr.json", "a", "b"]
    assert listed(lambda: store.list_dir("a/")) == ["zarr.json", "value"]
    assert listed(lambda: store.list_dir("a/value")) == ["zarr.json", "c"]
    for key in keys:
        assert asyncio.run(store.exists(key))
        assert get(store, key) is not None
    store.close()


@pytest.mark.parametrize(
    "key",
    ["x", "a/zarr", "a/value", "a/value/c", "a/value/c/0", "a/value/c/0/1", "a/value/c/00/0", "a/value/c/-1/0",
     "a/value/c/0/0/0", "a/value/c/x/0", "a/value/d/0/0", "b/step/c/0", "a/other/zarr.json", "", "../ucp.json"],
)  # fmt: skip
def test_keys_that_do_not_exist(store: UcpZarrStore, key: str) -> None:
    assert not asyncio.run(store.exists(key))
    assert get(store, key) is None
    store.close()


def test_ranges(store: UcpZarrStore) -> None:
    key, whole = "a/value/c/0/0", bytes(range(12))
    assert get(store, key) == whole
    assert get(store, key, RangeByteRequest(2, 5)) == whole[2:5]
    assert get(store, key, OffsetByteRequest(9)) == whole[9:]
    assert get(store, key, SuffixByteRequest(3)) == whole[9:]
    assert get(store, key, SuffixByteRequest(300)) == whole
    found = asyncio.run(
        store.get_partial_values(default_buffer_prototype(), [(key, RangeByteRequest(0, 1)), ("x", None)])
    )
    assert [part and part.to_bytes() for part in found] == [b"\0", None]
    store.close()


def test_a_view_is_read_only(store: UcpZarrStore) -> None:
    """UCP-W-005."""
    buffer = default_buffer_prototype().buffer.from_bytes(b"x")
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(store.set("a/value/c/0/0", buffer))
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(store.delete("a/value/c/0/0"))
    assert not store.supports_writes
    assert store.read_only
    store.close()


def test_views_are_equal_where_their_checkpoint_is_one(store: UcpZarrStore, tmp_path: Path) -> None:
    same = UcpZarrStore(store._checkpoint)
    other = zarr_store(tmp_path / "c")
    assert same == store
    assert hash(same) == hash(store)
    assert other != store
    assert store != "store"
    assert str(store) == f"ucp://{tmp_path / 'c'}"
    other.close()
    store.close()


def test_metadata_says_what_is_served(store: UcpZarrStore) -> None:
    """The view decodes: neither compressor nor checksum is left."""
    document = json.loads(get(store, "a/value/zarr.json") or b"")
    assert document["codecs"] == [{"name": "bytes"}]
    assert document["data_type"] == "int8"
    store.close()


def test_dimensions_have_one_extent_by_name(tmp_path: Path) -> None:
    """xarray refuses a group otherwise."""
    slots = {"exp_avg": (2, 6), "row": (2,), "step": (), "value": (2, 6)}
    state = {("a", name): Tensor(np.ones(shape, np.int8), "int8") for name, shape in slots.items()}
    state["b", "codes"] = Tensor(np.ones((4, 6), np.int8), "int8")
    state["b", "value"] = Tensor(np.ones((2, 6, 3), np.int8), "int8")
    save(tmp_path / "c", state)
    with zarr_store(tmp_path / "c") as store:
        names = {
            key: json.loads(get(store, f"{key}/zarr.json") or b"")["dimension_names"] for key in store._slots
        }
    assert names == {
        "a/exp_avg": ["dim_0", "dim_1"],
        "a/row": ["dim_0"],
        "a/step": [],
        "a/value": ["dim_0", "dim_1"],
        "b/codes": ["codes_dim_0", "dim_1"],
        "b/value": ["value_dim_0", "dim_1", "dim_2"],
    }


def test_groups_hold_the_documents_of_their_members(
    store: UcpZarrStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def members(key: str) -> dict[str, Any]:
        found = json.loads(get(store, key) or b"")
        consolidated: dict[str, Any] = found.get("consolidated_metadata", {}).get("metadata", {})
        return consolidated

    array = json.loads(get(store, "a/value/zarr.json") or b"")
    assert members("a/zarr.json") == {"value": array}
    assert [*members("zarr.json")] == ["a", "a/value", "b", "b/step"]
    assert members("zarr.json")["a/value"] == array
    group = zarr.open_consolidated(store, mode="r")
    assert sorted(group.group_keys()) == ["a", "b"]
    monkeypatch.setattr("ucpformat.zarr_view._CONSOLIDATED_AT_MOST", 1)
    assert members("zarr.json") == {}
    assert members("a/zarr.json") == {"value": array}
    store.close()
