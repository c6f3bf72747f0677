"""The validator: levels, everything at once, progress, memory (SPEC 18, 19)."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest

from tests.builders import (
    BLOSC,
    GZIP,
    MIB,
    STORAGES,
    Forgery,
    RawTable,
    State,
    Tensor,
    bits,
    forge,
    read_everything,
    result_or_refusal,
    save,
)
from tests.forgeries import make
from ucpformat.errors import Problem, UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.validation import LEVELS, Level, validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def codes(problems: list[Problem]) -> set[str]:
    return {problem.code for problem in problems}


def test_levels_are_ordered_and_each_contains_those_before() -> None:
    assert get_args(Level) == LEVELS == ("structure", "semantics", "integrity")


@pytest.mark.parametrize("storage", STORAGES)
def test_each_level_finds_its_own(tmp_path: Path, storage: Storage) -> None:
    """SPEC 18: schemas; what the text demands beyond; every stored byte."""
    good: State = {("a", "value"): Tensor(np.arange(1, 41, dtype=np.int8), "int8")}
    places: dict[Level, Path] = {level: tmp_path / level for level in LEVELS}
    for path in places.values():
        save(path, good, storage=storage, chunk_bytes=16, attempt="x", workers=1)
    Forgery(places["structure"]).edit(
        "index", lambda index: index["atoms"][0]["slots"]["value"].update(order="F")
    ).sealed()
    Forgery(places["semantics"]).edit("root", lambda root: root.update(read_features=["zstd"])).sealed()
    victim = next(places["integrity"].rglob("*.pack" if storage == "packed" else "c/0"))
    victim.write_bytes(b"\xff" + victim.read_bytes()[1:])
    found = {(broken, level): codes(validate(places[broken], level)) for broken in LEVELS for level in LEVELS}
    assert found == {
        ("structure", "structure"): {"UCP-E-SCHEMA"},
        ("structure", "semantics"): {"UCP-E-SCHEMA"},
        ("structure", "integrity"): {"UCP-E-SCHEMA"},
        ("semantics", "structure"): set(),
        ("semantics", "semantics"): {"UCP-E-FEATURE-SET"},
        ("semantics", "integrity"): {"UCP-E-FEATURE-SET"},
        ("integrity", "structure"): set(),
        ("integrity", "semantics"): set(),
        ("integrity", "integrity"): {"UCP-E-CHECKSUM"},
    }


@pytest.mark.parametrize("storage", STORAGES)
def test_progress_tells_of_every_stored_byte_of_data(tmp_path: Path, storage: Storage) -> None:
    data = bits(1, (300, 1000), DTYPES["float32"])
    save(tmp_path / "c", {("a", "value"): Tensor(data, "float32"), ("b", "value"): Tensor(data[:0], "float32")},
         storage=storage, chunk_bytes=100_000)  # fmt: skip
    told: list[int] = []
    assert validate(tmp_path / "c", progress=told.append) == []
    rows = Forgery(tmp_path / "c").table().rows
    assert sum(told) == sum(row[3] for row in rows)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """UCP-V-004."""
    path = tmp_path / "c"
    make(path, "packed")
    forged = Forgery(path)
    forged.edit("root", lambda root: root.update(read_features=["zstd"]))
    forged.edit(
        "index", lambda index: index["atoms"][0]["slots"]["value"].update(content="crc32c-tree:" + "0" * 64)
    )
    forged.edit(
        "state", lambda state: state["optimizers"].update(o={"groups": [{"atoms": ["z"], "options": {}}]})
    )
    forged.edit("state", lambda state: state["values"].update(x={"$set": ["b", "a"]}))
    forged.sealed()
    (path / "blobs/x-0").write_bytes(b"OPAQUE")
    (path / "index/debris").write_bytes(b"")
    found = {(problem.code, problem.at.split("#")[0]) for problem in validate(path)}
    assert found == {
        ("UCP-E-FEATURE-SET", "ucp.json"),
        ("UCP-E-CONTENT", "index/x-0.json"),
        ("UCP-E-REFERENCE", "index/x-state.json"),
        ("UCP-E-VALUE", "index/x-state.json"),
        ("UCP-E-DIGEST", "blobs/x-0"),
        ("UCP-W-UNREFERENCED", "index/debris"),
    }


@pytest.mark.parametrize("name", ["index", "table", "packs", "state"])
@pytest.mark.parametrize("how", ["missing", "length", "digest"])
def test_a_broken_document_does_not_hide_the_others(tmp_path: Path, name: str, how: str) -> None:
    """UCP-D-021, UCP-R-013, UCP-V-004."""
    forged = make(tmp_path / "c", "packed")
    reference = forged.reference(name)
    file = forged.path / reference["key"]
    match how:
        case "missing":
            file.unlink()
        case "length":
            file.write_bytes(file.read_bytes() + b" ")
        case _:
            file.write_bytes(file.read_bytes()[::-1])
    (forged.path / "blobs/x-0").write_bytes(b"OPAQUE")
    found = validate(forged.path, workers=1)
    expected = {"missing": "UCP-E-MISSING", "length": "UCP-E-LENGTH", "digest": "UCP-E-DIGEST"}[how]
    assert expected in {problem.code for problem in found if problem.at == reference["key"]}
    assert ("UCP-E-DIGEST", "blobs/x-0") in {
        (problem.code, problem.at) for problem in found
    } or name == "state"
    assert "UCP-W-UNREFERENCED" not in codes(found)
    refusal = result_or_refusal(lambda: read_everything(forged.path))
    assert isinstance(refusal, UcpError)
    assert (refusal.code, refusal.at) == (expected, reference["key"])


def parts(path: Path) -> Forgery:
    """Two parts of one atom each."""
    specs = [AtomSpec(name, {"value": SlotSpec("int8", (3,))}, (f"alias-{name}",)) for name in ("a", "b")]
    with patch("ucpformat.writer._ATOMS_PER_PART", 1), CheckpointWriter(path, specs, attempt="x") as writer:
        for name in ("a", "b"):
            writer.write(name, "value", np.arange(1, 4, dtype=np.int8))
        writer.set_optimizer("o", [(["a", "b"], {})])
    return Forgery(path)


def in_second_part(change: Callable[[dict[str, Any]], object]) -> Callable[[Forgery], object]:
    """Change the atom of the second part, and what the root says of it."""

    def edit(forged: Forgery) -> None:
        forged.root["parts"].reverse()
        forged.edit("index", lambda index: change(index["atoms"][0]))
        name = forged.document("index")["atoms"][0]["name"]
        forged.root["parts"][0].update(first=name, last=name)
        forged.root["parts"].reverse()

    return edit


@pytest.mark.parametrize(
    ("code", "change"),
    [
        pytest.param("UCP-E-NAME", in_second_part(lambda atom: atom.update(name="A")), id="parts unsorted"),
        pytest.param(
            "UCP-E-NAME", in_second_part(lambda atom: atom.update(name="a")), id="parts with one name"
        ),
        pytest.param(
            "UCP-E-NAME", in_second_part(lambda atom: atom.update(aliases=["a"])), id="an alias, a name"
        ),
        pytest.param(
            "UCP-E-NAME", in_second_part(lambda atom: atom.update(aliases=["alias-a"])), id="an alias twice"
        ),
        pytest.param("UCP-E-KEY", in_second_part(lambda atom: atom.update(key="A")), id="keys that fold"),
    ],
)
def test_what_only_the_whole_shows_is_found(
    tmp_path: Path, code: str, change: Callable[[Forgery], object]
) -> None:
    """UCP-D-017, UCP-D-027, UCP-D-028."""
    forged = parts(tmp_path / "c")
    assert validate(forged.sealed()) == []
    change(forged)
    assert code in codes(validate(forged.sealed()))


def test_a_recorded_layout_that_does_not_fit_is_found(tmp_path: Path) -> None:
    """SPEC 13: a layout is lowered for every shape that refers to it."""
    layout = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 0),))
    slots = {name: SlotSpec("int8", (4,), layout) for name in ("other", "value")}
    with CheckpointWriter(tmp_path / "c", [AtomSpec("a", slots)]) as writer:
        for slot in slots:
            writer.write("a", slot, np.ones(4, np.int8))
    forged = Forgery(tmp_path / "c")
    assert validate(forged.path) == []
    forged.root["layouts"][0]["steps"][0]["dim"] = 3
    assert codes(validate(forged.sealed())) == {"UCP-E-LAYOUT"}


def test_a_root_that_was_changed_is_found(tmp_path: Path) -> None:
    """UCP-D-018, UCP-R-012: however well it reads."""
    forged = make(tmp_path / "c", "packed")
    text = (forged.path / "ucp.json").read_bytes()
    (forged.path / "ucp.json").write_bytes(text.replace(b"ucpformat", b"ucpforger"))
    for level in ("semantics", "integrity"):
        assert [(problem.code, problem.at) for problem in validate(forged.path, level)] == [
            ("UCP-E-DIGEST", "ucp.json#/digest")
        ]


def test_a_faulty_mesh_is_no_reason_to_stop(tmp_path: Path) -> None:
    """UCP-V-004: layouts that cannot exist are left out, all else is looked at."""
    forged = make(tmp_path / "c", "packed")
    forged.root["meshes"] = [{"axes": [{"name": "x", "size": 1}, {"name": "x", "size": 1}]}]
    forged.root["layouts"] = [{"mesh": 0, "steps": []}]
    (forged.path / "blobs/x-0").write_bytes(b"OPAQUE")
    assert codes(validate(forged.sealed())) == {"UCP-E-LAYOUT", "UCP-E-DIGEST"}


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def check_frugal(path: Path, code: str, *, spare: int) -> None:
    """Validating and reading a few elements refuse with ``code`` and stay within ``spare`` bytes."""
    found: list[Problem] = []
    assert peak_of(lambda: found.extend(validate(path, workers=1))) < spare
    assert code in codes(found)
    with open_checkpoint(path) as checkpoint:

        def read() -> None:
            with pytest.raises(UcpError, match=code):
                checkpoint["a"]["value"][0:2]

        assert peak_of(read) < spare


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("compressor", [GZIP, BLOSC])
def test_a_segment_of_a_tebibyte_takes_no_memory(tmp_path: Path, storage: Storage, compressor: Any) -> None:
    """UCP-S-002: the length is compared with that of the object first."""
    state: State = {("a", "value"): Tensor(np.ones(9, np.int8), "int8", compressor)}
    forged = forge(tmp_path / "c", state, storage=storage, workers=1)

    def change(table: RawTable) -> None:
        table.rows[0][3] = 2**40
        table.checksums[:] = [0] * 2**20

    forged.edit_table(change)
    if storage == "packed":
        forged.edit("packs", lambda packs: packs["packs"][0].update(length=2**41))
    check_frugal(forged.sealed(), "UCP-E-LENGTH", spare=64 * MIB)


def test_a_chunk_of_a_gibibyte_in_boxes_takes_no_memory(tmp_path: Path) -> None:
    """UCP-S-002."""
    with CheckpointWriter(
        tmp_path / "c", [AtomSpec("a", {"value": SlotSpec("float32", (4, 2))})], chunk_bytes=2**30, workers=1
    ) as writer:
        for column in range(2):
            writer.write("a", "value", np.ones((4, 1), np.float32), offset=(0, column))
    forged = Forgery(tmp_path / "c")
    forged.edit("index", lambda index: index["atoms"][0]["slots"]["value"].update(shape=[2**27, 2]))

    def change(table: RawTable) -> None:
        for row, column in zip(table.rows, (0, 1), strict=True):
            row[2:4] = [column * 2**29, 2**29]
        table.words[:] = [0, 0, 2**27, 1, 0, 1, 2**27, 1]
        table.checksums[:] = [0] * 1024

    forged.edit_table(change)
    forged.edit("packs", lambda packs: packs["packs"][0].update(length=2**30))
    check_frugal(forged.sealed(), "UCP-E-LENGTH", spare=8 * MIB)


def test_zeros_without_end_take_no_memory(tmp_path: Path) -> None:
    """UCP-S-002: 64 GiB of zero entries fit into a few hundred bytes, and have a content digest."""
    forged = forge(tmp_path / "c", {("a", "value"): Tensor(np.zeros(9, np.int8), "int8")}, chunk_bytes=2**30)
    forged.edit("index", lambda index: index["atoms"][0]["slots"]["value"].update(shape=[2**36]))
    forged.edit_table(lambda table: table.counts.extend([0] * 63))
    found: list[Problem] = []
    assert peak_of(lambda: found.extend(validate(forged.sealed(), workers=1))) < 16 * MIB
    assert codes(found) == {"UCP-E-CONTENT"}
    with open_checkpoint(forged.path) as checkpoint:
        assert checkpoint["a"]["value"][2**35 : 2**35 + 5].tolist() == [0] * 5


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("count", [9, 3 * MIB])
def test_bytes_that_are_whole_but_not_of_the_recorded_content(
    tmp_path: Path, storage: Storage, count: int
) -> None:
    """UCP-D-038: the checksums of the table are right, the content digest is another's."""
    tensor = Tensor(np.ones(count, np.int8), "int8")
    forged = forge(tmp_path / "c", {("a", "value"): tensor, ("b", "value"): tensor}, storage=storage)
    forged.edit(
        "index", lambda index: index["atoms"][1]["slots"]["value"].update(content="crc32c-tree:" + 64 * "0")
    )
    (found,) = validate(forged.sealed())
    assert found.code == "UCP-E-CONTENT"
    assert "b/value" in found.message


def test_a_document_over_its_limit_is_not_read(tmp_path: Path) -> None:
    """UCP-R-003: a sparse file of 256 MiB and one byte."""
    forged = make(tmp_path / "c", "packed")
    with (forged.path / forged.reference("index")["key"]).open("r+b") as file:
        file.truncate(2**28 + 1)
    found: list[Problem] = []
    assert peak_of(lambda: found.extend(validate(forged.path, workers=1))) < 8 * MIB
    assert {"UCP-E-LIMIT", "UCP-E-LENGTH"} <= codes(found)


def test_large_blobs_are_checked_piece_by_piece(tmp_path: Path) -> None:
    """A blob may be larger than any document."""
    with CheckpointWriter(tmp_path / "c", []) as writer:
        writer.add_blob("b", bytes(24 * MIB), "application/octet-stream")
    assert peak_of(lambda: validate(tmp_path / "c", workers=1)) < 12 * MIB
    assert validate(tmp_path / "c") == []
    blob = next((tmp_path / "c" / "blobs").iterdir())
    with blob.open("r+b") as file:
        file.seek(20 * MIB)
        file.write(b"x")
    assert codes(validate(tmp_path / "c")) == {"UCP-E-DIGEST"}


def test_pickles_in_blobs_are_never_loaded(tmp_path: Path) -> None:
    """UCP-S-004."""
    witness = tmp_path / "witness"

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (witness,)

    content = pickle.dumps(Payload())
    with CheckpointWriter(tmp_path / "c", []) as writer:
        writer.add_blob("extra", content, "application/x-pickle")
    assert validate(tmp_path / "c") == []
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint.blobs["extra"] == content
    assert not witness.exists()
    pickle.loads(content)
    assert witness.exists()


@pytest.mark.parametrize("storage", STORAGES)
def test_every_flipped_byte_of_large_data_is_found_where_it_is(storage: Storage, tmp_path: Path) -> None:
    """Chunks of more than a block, which end in the middle of one, and slabs of other writers in them."""
    rows = np.random.default_rng(1).integers(1, 100, (700, 6001), np.int8)
    state: State = {("a", "value"): Tensor(rows, "int8")}
    save(tmp_path / "c", state, storage=storage, chunk_bytes=(1 << 21) + 4096)
    assert validate(tmp_path / "c") == []
    files = [path for path in (tmp_path / "c").rglob("*") if path.is_file() and path.stat().st_size > 1 << 19]
    for path in files:
        data = path.read_bytes()
        for place in (0, 1 << 20, (1 << 20) - 1, len(data) // 2, len(data) - 5):
            if data[place] == 0:
                continue  # padding, which others look after
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            found = {problem.code for problem in validate(tmp_path / "c")}
            assert found in ({"UCP-E-CHECKSUM"}, {"UCP-E-CHECKSUM", "UCP-E-CONTENT"}), (path, place)
        path.write_bytes(data)
    assert validate(tmp_path / "c") == []


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("storage", STORAGES)
def test_references_that_share_a_key_are_problems_and_no_crash(
    tmp_path: Path, storage: Storage, level: Level
) -> None:
    """UCP-D-012: a document that meets one schema is looked at by another one."""
    places: list[tuple[str | int, ...]] = [("state",), ("parts", 0, "index"), ("parts", 0, "table")]
    if storage == "packed":
        places.append(("packs",))
    for number, (place, other) in enumerate(permutations(places, 2)):
        forged = make(tmp_path / str(number), storage)
        found: Any = forged.root
        for member in place:
            found = found[member]
        twin: Any = forged.root
        for member in other:
            twin = twin[member]
        found.update(twin)
        problems = validate(forged.sealed(), level)
        assert level == "structure" or "UCP-E-KEY" in codes(problems), (place, other)
