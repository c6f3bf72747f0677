"""Damage of every kind is found, and never read as data (SPEC 17.3, 18)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.builders import (
    GZIP,
    STORAGES,
    Array,
    Forgery,
    State,
    Tensor,
    bits,
    declare,
    files_below,
    result_or_refusal,
    save,
    states,
)
from ucpformat.errors import UcpError
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.validation import validate
from ucpformat.writer import CheckpointWriter

Damage = Callable[[Path], bool]
"""Does some damage to a checkpoint; False where there was nothing of the kind to damage."""


def flip(place: float, bit: int) -> Callable[[Path], bool]:
    def damage(file: Path) -> bool:
        data = bytearray(file.read_bytes())
        if not data:
            return False
        data[int(place * len(data))] ^= 1 << bit
        file.write_bytes(data)
        return True

    return damage


def truncate(place: float) -> Callable[[Path], bool]:
    def damage(file: Path) -> bool:
        data = file.read_bytes()
        file.write_bytes(data[: int(place * len(data))])
        return len(data) > 0

    return damage


def lengthen(tail: bytes) -> Callable[[Path], bool]:
    def damage(file: Path) -> bool:
        file.write_bytes(file.read_bytes() + tail)
        return True

    return damage


def remove(file: Path) -> bool:
    file.unlink()
    return True


def overwrite(start: float, content: bytes) -> Callable[[Path], bool]:
    """As a lost or misdirected write would: a run of other bytes, zeros for instance."""

    def damage(file: Path) -> bool:
        before = file.read_bytes()
        at = int(start * len(before))
        after = before[:at] + content[: len(before) - at] + before[at + len(content) :]
        file.write_bytes(after)
        return after != before

    return damage


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """Damage to one file that the root reaches, or to two."""
    which = st.floats(0, 1, exclude_max=True)
    kind = draw(
        st.sampled_from(
            ["flip", "flip", "flip", "truncate", "lengthen", "remove", "overwrite", "swap", "chunks"]
        )
    )
    first, second = draw(which), draw(which)
    place = draw(which)
    if kind == "swap":
        return lambda path: swap_files(path, first, second)
    if kind == "chunks":
        return lambda path: swap_chunks(path, first, second)
    single = {
        "flip": flip(place, draw(st.integers(0, 7))),
        "truncate": truncate(draw(st.sampled_from([0.0, place]))),
        "lengthen": lengthen(draw(st.sampled_from([b"\0", b"\n", b"x", bytes(4096)]))),
        "remove": remove,
        "overwrite": overwrite(
            place, draw(st.sampled_from([bytes(1), bytes(64), bytes(4096), b"\xff" * 16]))
        ),
    }[kind]

    def damage(path: Path) -> bool:
        files = list(files_below(path))
        return single(files[int(first * len(files))])

    return damage


def swap_files(path: Path, first: float, second: float) -> bool:
    """Any two files: of one kind or of two, of equal length or not."""
    files = list(files_below(path))
    a, b = files[int(first * len(files))], files[int(second * len(files))]
    one, other = a.read_bytes(), b.read_bytes()
    a.write_bytes(other)
    b.write_bytes(one)
    return one != other


def swap_chunks(path: Path, first: float, second: float) -> bool:
    """Two segments of equal length inside packs: each intact, but in the other's place."""
    forged = Forgery(path)
    if not forged.root["parts"] or forged.root["storage"] == "plain":
        return False
    rows = forged.table().rows
    if not rows:
        return False
    row = rows[int(first * len(rows))]
    alike = [other for other in rows if other[3] == row[3] and other[:3] != row[:3]]
    if not alike:
        return False
    other = alike[int(second * len(alike))]
    files = [path / pack["key"] for pack in forged.document("packs")["packs"]]
    content = {file: bytearray(file.read_bytes()) for file in files}
    parts = [
        (content[files[container]], offset, offset + length)
        for container, _, offset, length, _ in (row, other)
    ]
    one, two = (bytes(data[start:stop]) for data, start, stop in parts)
    for (data, start, stop), replacement in zip(parts, (two, one), strict=True):
        data[start:stop] = replacement
    for file, data in content.items():
        file.write_bytes(data)
    return one != two


def check_damaged(path: Path, state: State) -> None:
    """The validator finds something, and the reader gives right bytes or a refusal."""
    found = validate(path, workers=1)
    assert [problem for problem in found if problem.severity == "error"], found
    checkpoint = result_or_refusal(lambda: open_checkpoint(path, workers=1))
    if isinstance(checkpoint, UcpError):
        return
    with checkpoint:
        names = result_or_refusal(lambda: list(checkpoint))
        if isinstance(names, UcpError):
            return
        assert set(names) == {atom for atom, _ in state}
        for (atom, slot), tensor in state.items():
            data = result_or_refusal(partial(read, checkpoint, atom, slot))
            assert isinstance(data, UcpError) or data.tobytes() == tensor.data.tobytes()


def read(checkpoint: Checkpoint, atom: str, slot: str) -> Array:
    return checkpoint[atom][slot].read()


def save_with_state(path: Path, state: State, storage: Storage, chunk_bytes: int) -> None:
    with CheckpointWriter(
        path, declare(state), storage=storage, chunk_bytes=chunk_bytes, workers=2
    ) as writer:
        for (atom, slot), tensor in state.items():
            writer.write(atom, slot, tensor.data)
        writer.set_value("epoch", 3)
        writer.add_blob("extra", b"opaque bytes", "application/octet-stream")


@given(states(), st.sampled_from(STORAGES), st.sampled_from([16, 64, 5000]), damages())
def test_any_damage_is_found_and_never_read_as_data(
    tmp_path_factory: pytest.TempPathFactory, state: State, storage: Storage, chunk_bytes: int, damage: Damage
) -> None:
    """UCP-D-021, UCP-D-099, UCP-D-108, UCP-R-012, UCP-R-013, UCP-R-029, UCP-V-004."""
    path = tmp_path_factory.mktemp("damage") / "c"
    save_with_state(path, state, storage, chunk_bytes)
    assume(damage(path))
    check_damaged(path, state)


@pytest.mark.parametrize(
    "compressor", [None, Compressor("gzip", {"level": 0})], ids=["raw", "stored by gzip"]
)
@pytest.mark.parametrize("shape", [(20,), (900_000,)], ids=["within a block", "in several blocks"])
@pytest.mark.parametrize("storage", STORAGES)
def test_chunks_in_each_others_place_are_found(
    tmp_path: Path, storage: Storage, shape: tuple[int, ...], compressor: Compressor | None
) -> None:
    """UCP-R-029: intact chunks of equal length, whose own checksums are right wherever they lie.

    The CRC of data followed by their CRC is a constant, so that a table that covered both would not see it.
    """
    data = bits(1, (2, *shape), DTYPES["uint16"])
    state: State = {("a", "value"): Tensor(data, "uint16", compressor)}
    path = tmp_path / "c"
    save(path, state, storage=storage, chunk_bytes=data.nbytes // 2, workers=1)
    assert Forgery(path).table().counts == [1, 1]
    if storage == "packed":
        assert swap_chunks(path, 0.0, 0.0)
    else:
        one, other = (path / "atoms" / "a" / "value" / "c" / str(n) / "0" for n in range(2))
        contents = one.read_bytes(), other.read_bytes()
        assert len(contents[0]) == len(contents[1])
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
    check_damaged(path, state)
    with open_checkpoint(path, workers=1) as checkpoint, pytest.raises(UcpError, match="UCP-E-CHECKSUM"):
        checkpoint["a"]["value"][0]


@dataclass(frozen=True)
class Large:
    """Several MiB with blocks and chunks that do not coincide."""

    path: Path
    state: State


@pytest.fixture(scope="module", params=STORAGES)
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Large:
    state: State = {
        ("a", "value"): Tensor(bits(1, (700, 1001), DTYPES["float32"]), "float32"),
        ("a", "packed"): Tensor(bits(2, (1_500_000,), DTYPES["int4"]), "int4", GZIP),
        ("b", "value"): Tensor(bits(3, (3, 200_003), DTYPES["bfloat16"]), "bfloat16"),
    }
    path = tmp_path_factory.mktemp("large") / "c"
    save(path, state, storage=request.param, chunk_bytes=1_300_000)
    return Large(path, state)


@settings(max_examples=15)
@given(damages())
def test_damage_of_several_mebibytes_is_found(
    large: Large, tmp_path_factory: pytest.TempPathFactory, damage: Damage
) -> None:
    """UCP-R-029: in any block of any chunk."""
    path = tmp_path_factory.mktemp("copy") / "c"
    shutil.copytree(large.path, path)
    try:
        assume(damage(path))
        check_damaged(path, large.state)
    finally:
        shutil.rmtree(path)


@pytest.mark.parametrize("storage", STORAGES)
def test_every_byte_of_a_small_checkpoint_counts(tmp_path: Path, storage: Storage) -> None:
    """One bit of every byte of every file but the largest documents, which the property above samples."""
    state: State = {("a", "value"): Tensor(bits(1, (5, 3), DTYPES["int16"]), "int16")}
    save(tmp_path / "c", state, storage=storage, chunk_bytes=16)
    files = [file for file in files_below(tmp_path / "c") if file.suffix != ".json" or "atoms" in file.parts]
    assert files
    for file in files:
        good = file.read_bytes()
        for place in range(0, len(good), 1 if file.suffix != ".bin" else 3):
            file.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
            check_damaged(tmp_path / "c", state)
        file.write_bytes(good)
    assert validate(tmp_path / "c") == []


def test_every_byte_of_the_root_counts(tmp_path: Path) -> None:
    """UCP-D-018, UCP-R-012: no flip in the root is opened."""
    save(tmp_path / "c", {("a", "value"): Tensor(np.ones(3, np.int8), "int8")}, step=1)
    file = tmp_path / "c" / "ucp.json"
    good = file.read_bytes()
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
        found = result_or_refusal(lambda: open_checkpoint(tmp_path / "c", workers=1))
        assert isinstance(found, UcpError), good[place : place + 10]
    file.write_bytes(good)
    open_checkpoint(tmp_path / "c").close()


@given(states(), st.sampled_from(STORAGES), st.data())
def test_lost_objects_are_missed(
    tmp_path_factory: pytest.TempPathFactory, state: State, storage: Storage, data: st.DataObject
) -> None:
    """UCP-V-004: all that is missing is reported at once, each in its place, a deleted plain chunk above all."""
    path = tmp_path_factory.mktemp("lost") / "c"
    save_with_state(path, state, storage, 64)
    rooms = ("atoms", "packs", "blobs")
    files = [file for file in files_below(path) if file.relative_to(path).parts[0] in rooms]
    lost = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True))
    for file in lost:
        file.unlink()
    missing = {problem.at for problem in validate(path, workers=1) if problem.code == "UCP-E-MISSING"}
    assert missing == {file.relative_to(path).as_posix() for file in lost}
