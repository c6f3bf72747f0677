"""What an open checkpoint offers, and which bytes it fetches for it (SPEC 17.1 to 17.3)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np
import pytest

from tests.builders import (
    BLOSC,
    GZIP,
    MIB,
    STORAGES,
    ZSTD,
    Forgery,
    Tensor,
    bits,
    forge,
    read_all,
    save,
)
from ucpformat.errors import UcpError
from ucpformat.geometry import Flatten, Layout, Mesh, MeshAxis, Only, Shard
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage, parse_root
from ucpformat.model.state import StateDocument
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.stores.local import LocalStore
from ucpformat.validation import validate
from ucpformat.views import SlotView
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


class CountingStore(LocalStore):
    """Counts what is fetched of data, by key."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fetched: list[tuple[str, int, int]] = []
        self.counting = threading.Lock()

    def read(self, key: str, start: int, stop: int) -> bytes:
        with self.counting:
            self.fetched.append((key, start, stop))
        return super().read(key, start, stop)

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        with self.counting:
            self.fetched.append((key, start, start + sum(buffer.nbytes for buffer in buffers)))
        super().read_into(key, start, buffers)

    @property
    def data_bytes(self) -> int:
        return sum(stop - start for key, start, stop in self.fetched if not key.startswith(("index/", "ucp")))


def open_counting(path: Path, *, verify: bool) -> tuple[Checkpoint, CountingStore]:
    store = CountingStore(path)
    root = parse_root((path / "ucp.json").read_bytes(), features=frozenset(), extensions=frozenset())
    checkpoint = Checkpoint(store, root, verify=verify, workers=2)
    checkpoint.part(0)
    return checkpoint, store


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> dict[Storage, Path]:
    """7 MiB of float32 rows of 3,001 bytes times 4, in chunks of about 2.6 MiB: nothing coincides with 1 MiB."""
    folder = tmp_path_factory.mktemp("big")
    for storage in STORAGES:
        save(
            folder / storage, {("a", "value"): Tensor(BIG, "float32")}, storage=storage, chunk_bytes=2_700_000
        )
    return {storage: folder / storage for storage in STORAGES}


BIG = bits(3, (611, 3001), DTYPES["float32"])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    ("index", "verified", "bare"),
    [
        # Rows have 12,004 bytes; chunks have 204 rows, 2,448,816 bytes: blocks of 1 MiB, 1 MiB and the rest.
        pytest.param(np.s_[0:10], MIB, 10 * 12_004, id="ten rows in one block"),
        pytest.param(np.s_[85:95], 2 * MIB, 10 * 12_004, id="ten rows across two blocks"),
        pytest.param(np.s_[180:190], 2_448_816 - 2 * MIB, 10 * 12_004, id="ten rows in the last block"),
        pytest.param(np.s_[199:209], 2_448_816 - 2 * MIB + MIB, 10 * 12_004, id="ten rows across two chunks"),
        pytest.param(np.s_[0:10, 5:6], MIB, 9 * 12_004 + 4, id="a column of ten rows"),
        pytest.param(np.s_[3, 7], MIB, 4, id="one element"),
        pytest.param(np.s_[:], 611 * 12_004, 611 * 12_004, id="all"),
        pytest.param(np.s_[5:5], 0, 0, id="nothing"),
    ],
)
def test_only_the_blocks_that_are_needed_are_fetched(
    big: dict[Storage, Path], storage: Storage, index: Any, verified: int, bare: int
) -> None:
    """Step 3 of 17.2; UCP-R-029: the checksum of every block that is read from is checked."""
    for verify, expected in ((True, verified), (False, bare)):
        checkpoint, store = open_counting(big[storage], verify=verify)
        with checkpoint:
            found = checkpoint["a"]["value"][index]
        assert found.tobytes() == BIG[index].tobytes()
        if storage == "plain" and verify:
            # The last of three plain chunks has a row of padding in its last block.
            expected += 12_004 * (index == np.s_[:])
        assert store.data_bytes == expected


@pytest.mark.parametrize("storage", STORAGES)
def test_a_flip_outside_what_is_asked_for_does_not_matter(big: dict[Storage, Path], storage: Storage) -> None:
    """UCP-R-029: blocks that are read are checked, the others are not touched."""
    path = big[storage]
    forged = Forgery(path)
    container, _, offset, _, _ = forged.table().rows[0]
    if storage == "plain":
        victim = path / "atoms" / "a" / "value" / "c" / "0" / "0"
    else:
        victim = path / forged.document("packs")["packs"][container]["key"]
    good = victim.read_bytes()
    place = offset + MIB + 5
    try:
        victim.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with open_checkpoint(path) as checkpoint:
            assert checkpoint["a"]["value"][0:10].tobytes() == BIG[0:10].tobytes()
            with pytest.raises(UcpError, match="UCP-E-CHECKSUM"):
                checkpoint["a"]["value"][85:95]
            with pytest.raises(UcpError, match="UCP-E-CHECKSUM"):
                checkpoint["a"]["value"].read()
        with open_checkpoint(path, verify=False) as careless:
            assert careless["a"]["value"].read().shape == BIG.shape
    finally:
        victim.write_bytes(good)


def test_threads_share_a_checkpoint(big: dict[Storage, Path]) -> None:
    with open_checkpoint(big["packed"], workers=2) as checkpoint, ThreadPoolExecutor(4) as pool:
        rows = range(0, 600, 30)
        found = list(pool.map(lambda row: checkpoint["a"]["value"][row : row + 40], rows))
    assert [part.tobytes() for part in found] == [BIG[row : row + 40].tobytes() for row in rows]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    mesh = Mesh((MeshAxis("tp", 2), MeshAxis("dp", 3)))
    data = np.arange(24, dtype=np.int16).reshape(4, 6)
    with CheckpointWriter(
        tmp_path / "c",
        [
            AtomSpec(
                "layers.0.weight",
                {
                    "value": SlotSpec("int16", (4, 6), Layout(mesh, (Shard("tp", 0),)), GZIP),
                    "step": SlotSpec("int64", ()),
                },
                aliases=("output.weight",),
            ),
            AtomSpec("norm", {"value": SlotSpec("int16", (0, 3))}),
        ],
        chunk_bytes=16,
        annotations={"org.example": {"fill_value": 7}},
    ) as writer:
        writer.write("layers.0.weight", "value", data)
        writer.write("layers.0.weight", "step", np.array(3))
        writer.set_value("epoch", (1, 2.5))
        writer.set_optimizer("optim", [(["norm"], {"lr": 0.5})])
        writer.add_blob("extra", b"\x80\x04opaque", "application/octet-stream")
    return tmp_path / "c"


def test_an_open_checkpoint_is_a_mapping(small: Path) -> None:
    with open_checkpoint(small) as checkpoint:
        assert list(checkpoint) == ["layers.0.weight", "norm"]
        assert "output.weight" in checkpoint
        assert "nothing" not in checkpoint
        assert checkpoint["output.weight"].atom.name == "layers.0.weight"
        atom = checkpoint["layers.0.weight"]
        assert (list(atom), len(atom)) == (["step", "value"], 2)
        view = atom["value"]
        assert (view.shape, view.dtype.name, view.nbytes, view.chunk_shape) == ((4, 6), "int16", 48, (1, 6))
        assert view.layout is not None
        assert atom["step"].layout is None
        assert int(np.asarray(atom["step"])) == 3
        assert np.asarray(view, dtype=np.float64)[1, 2] == 8.0
        assert [stored.slot.name for stored in checkpoint.slots()] == ["step", "value", "value"]
        assert checkpoint.objects["epoch"] == (1, 2.5)
        assert checkpoint.blobs["extra"] == b"\x80\x04opaque"
        assert checkpoint.state.optimizers["optim"].groups[0].atoms == ("norm",)


def test_unknown_names_are_answered_with_near_ones(small: Path) -> None:
    with open_checkpoint(small) as checkpoint:
        with pytest.raises(KeyError, match=r"did you mean layers\.0\.weight"):
            checkpoint["layers.0.weigth"]
        with pytest.raises(KeyError, match="no atom 'qqqq'"):
            checkpoint["qqqq"]
        with pytest.raises(KeyError, match="no atom ''"):
            checkpoint[""]
        with pytest.raises(KeyError, match="no slot 'master', but step, value"):
            checkpoint["layers.0.weight"]["master"]
        with pytest.raises(KeyError):
            checkpoint.objects["nothing"]
        with pytest.raises(KeyError):
            checkpoint.blobs["nothing"]


@pytest.mark.parametrize(
    "index",
    [
        4,
        -5,
        (0, 6),
        (0, 0, 0),
        (..., ...),
        True,
        "a",
        1.0,
        np.array([True]),
    ],
)
def test_what_numpy_takes_for_no_index_is_refused(small: Path, index: object) -> None:
    with open_checkpoint(small) as checkpoint, pytest.raises(IndexError):
        checkpoint["layers.0.weight"]["value"][index]


def test_numpy_integers_select(small: Path) -> None:
    with open_checkpoint(small) as checkpoint:
        assert checkpoint["layers.0.weight"]["value"][np.int64(1), np.uint8(2)] == 8


@pytest.mark.parametrize("coord", [{"pp": 0}, {"tp": 2}, {"tp": -1}])
def test_coordinates_off_the_mesh_are_refused(small: Path, coord: Mapping[str, int]) -> None:
    with open_checkpoint(small) as checkpoint:
        layout = checkpoint["layers.0.weight"]["value"].layout
        with pytest.raises(UcpError, match="UCP-E-LAYOUT"):
            checkpoint.read("layers.0.weight", layout=layout, coord=coord)


def test_nothing_is_where_a_layout_puts_nothing(small: Path) -> None:
    layout = Layout(Mesh((MeshAxis("pp", 2),)), (Only("pp", (1,)), Flatten()))
    with open_checkpoint(small) as checkpoint:
        assert checkpoint.read("layers.0.weight", layout=layout) is None
        found = checkpoint.read("layers.0.weight", layout=layout, coord={"pp": 1})
        assert found is not None
        assert found.tolist() == list(range(24))


def test_a_layout_that_does_not_fit_is_refused(small: Path) -> None:
    layout = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 5),))
    with open_checkpoint(small) as checkpoint, pytest.raises(UcpError, match="UCP-E-LAYOUT"):
        checkpoint.read("layers.0.weight", layout=layout)


@pytest.mark.parametrize("compressor", [GZIP, ZSTD, BLOSC])
@pytest.mark.parametrize("storage", STORAGES)
def test_compressed_chunks_are_read_whole_and_give_parts(
    tmp_path: Path, storage: Storage, compressor: Any
) -> None:
    """UCP-D-009: the features that the compressors need are declared."""
    data = np.arange(1000, dtype=np.int32).reshape(10, 100)
    save(
        tmp_path / "c", {("a", "value"): Tensor(data, "int32", compressor)}, storage=storage, chunk_bytes=1600
    )
    assert Forgery(tmp_path / "c").root["read_features"] == ([] if compressor is GZIP else [compressor.name])
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint["a"]["value"][3:9:2, 5].tolist() == data[3:9:2, 5].tolist()
    with open_checkpoint(tmp_path / "c", verify=False) as checkpoint:
        assert checkpoint["a"]["value"][3:9:2, 5].tolist() == data[3:9:2, 5].tolist()


def test_annotations_change_nothing_that_is_read(small: Path) -> None:
    """UCP-R-031."""
    before = read_bytes(small)
    forged = Forgery(small)
    forged.edit("root", lambda root: root["annotations"].update({"dtype": "int8", "chunk_bytes": 1}))
    forged.edit("index", lambda index: index["atoms"][0].update({"annotations": {"shape": [1]}}))
    forged.edit("state", lambda state: state.update({"annotations": {"values": {}}}))
    forged.sealed()
    assert validate(small) == []
    assert read_bytes(small) == before


def read_bytes(path: Path) -> dict[tuple[str, str], bytes]:
    with open_checkpoint(path) as checkpoint:
        return {place: data.tobytes() for place, data in read_all(checkpoint).items()}


def test_objects_that_the_root_does_not_reach_are_ignored(small: Path) -> None:
    """UCP-R-011, UCP-V-002: a reader ignores debris, the validator warns of it."""
    before = read_bytes(small)
    for key in ("index/dead-0.json", "packs/dead-0-0.pack", "blobs/dead-0", "notes.txt", ".ucp.json.1f"):
        (small / key).write_bytes(b"debris")
    assert read_bytes(small) == before
    found = validate(small)
    assert {problem.code for problem in found} == {"UCP-W-UNREFERENCED"}
    assert {problem.severity for problem in found} == {"warning"}
    assert {problem.at for problem in found} == {
        "index/dead-0.json", "packs/dead-0-0.pack", "blobs/dead-0", "notes.txt", ".ucp.json.1f"
    }  # fmt: skip


def test_an_optional_extension_is_passed_over_and_an_obligatory_one_refused(small: Path) -> None:
    """UCP-R-030, UCP-R-009: write features and optional extensions do not keep a reader out."""
    forged = Forgery(small)
    forged.root["extensions"] = {"org.example.moe": {"must_understand": False}}
    forged.sealed()
    with open_checkpoint(small) as checkpoint:
        assert len(checkpoint) == 2
    forged.root["extensions"] = {"org.example.moe": {}}
    forged.sealed()
    with pytest.raises(UcpError, match="UCP-E-EXTENSION"):
        open_checkpoint(small)


def test_write_features_do_not_keep_a_reader_out(small: Path) -> None:
    """UCP-R-009."""
    forged = Forgery(small)
    forged.root["write_features"] = ["row-overwrite"]
    forged.sealed()
    with open_checkpoint(small) as checkpoint:
        assert len(checkpoint) == 2


def test_a_checkpoint_without_a_state_document_has_an_empty_state(tmp_path: Path) -> None:
    forged = forge(tmp_path / "c", {("a", "value"): Tensor(np.ones(3, np.int8), "int8")})
    del forged.root["state"]
    forged.sealed()
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint.state == StateDocument({}, {}, {})
    assert [problem.code for problem in validate(tmp_path / "c")] == ["UCP-W-UNREFERENCED"]


def test_an_empty_checkpoint_is_one(tmp_path: Path) -> None:
    for storage in STORAGES:
        save(tmp_path / storage, {}, storage=storage)
        assert validate(tmp_path / storage) == []
        with open_checkpoint(tmp_path / storage) as checkpoint:
            assert list(checkpoint) == []
            with pytest.raises(KeyError):
                checkpoint["a"]


def test_extension_types_come_as_their_numpy_types(tmp_path: Path) -> None:
    data = np.array([1.5, np.nan], ml_dtypes.bfloat16)
    save(tmp_path / "c", {("a", "value"): Tensor(data, "bfloat16")})
    with open_checkpoint(tmp_path / "c") as checkpoint:
        view = checkpoint["a"]["value"]
        assert isinstance(view, SlotView)
        assert view[:1].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("bad", [0, 3, 6])
@pytest.mark.parametrize("suffix", ["json", "bin"])
def test_parts_come_in_turn_up_to_the_first_that_is_damaged(tmp_path: Path, bad: int, suffix: str) -> None:
    state = {(f"a{n}", "value"): Tensor(np.full(3, n + 1, np.int8), "int8") for n in range(7)}
    with patch("ucpformat.writer._ATOMS_PER_PART", 1):
        save(tmp_path / "c", state, attempt="x")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        into = {name: np.zeros(3, np.int8) for name in state}
        checkpoint.load(into)
        assert all((into[name] == tensor.data).all() for name, tensor in state.items())
        assert [slot.label for slot in checkpoint.slots()] == [f"a{n}/value" for n in range(7)]
    damaged = tmp_path / "c" / "index" / f"x-{bad}.{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with open_checkpoint(tmp_path / "c") as checkpoint:
        names = iter(checkpoint)
        assert [next(names) for _ in range(bad)] == [f"a{n}" for n in range(bad)]
        with pytest.raises(UcpError) as caught:
            next(names)
    assert (caught.value.code, caught.value.at) == ("UCP-E-DIGEST", f"index/x-{bad}.{suffix}")


def test_a_checkpoint_without_atoms_has_no_part_to_look_into(tmp_path: Path) -> None:
    save(tmp_path / "c", {})
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert list(checkpoint) == []
        with pytest.raises(KeyError):
            checkpoint.load({("a", "value"): np.zeros(3)})
