"""What a repair brings back is what was there, byte for byte, and what it cannot bring back it names (SPEC 8.4)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ucpformat as ucp
from tests.builders import GZIP, MIB, STORAGES, State, Tensor, bits, save, snapshot, states
from tests.test_damage import Damage, damages, save_with_state
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import ROOT_KEY, Storage
from ucpformat.reader import open_checkpoint
from ucpformat.repairing import repair
from ucpformat.repairing.sources import Source
from ucpformat.validation import examine, validate


def digest_of(path: Path) -> str:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.digest


@settings(max_examples=40)
@given(states(), st.sampled_from(STORAGES), st.sampled_from([16, 64, 5000]), damages(), damages())
def test_from_a_copy_everything_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    state: State,
    storage: Storage,
    chunk_bytes: int,
    damage: Damage,
    another: Damage,
) -> None:
    """UCP-W-019: byte for byte, whatever the damage was; what was good is not touched."""
    place = tmp_path_factory.mktemp("repair")
    path, other = place / "c", place / "other"
    save_with_state(path, state, storage, chunk_bytes)
    good = snapshot(path)
    shutil.copytree(path, other)
    digest = digest_of(path)
    assume(damage(path))
    with suppress(Exception):  # it takes documents that the first has left
        another(path)
    assume((path / ROOT_KEY).exists())
    before = {file: file.stat().st_ino for file in path.rglob("*") if file.is_file()}
    repaired = repair(path, [other], digest=digest)
    assert repaired.is_whole
    assert repaired.survey is not None
    assert repaired.survey.is_whole
    assert {key: data for key, data in snapshot(path).items() if key in good} == good
    assert not [problem for problem in validate(path, workers=1) if problem.severity == "error"]
    restored = {one.key for one in repaired.restored}
    for file, number in before.items():
        assert file.relative_to(path).as_posix() in restored or file.stat().st_ino == number
    assert snapshot(other) == good


def model(seed: int) -> State:
    """One tensor of three blocks, and small ones: of those, ``fixed`` does not change from step to step."""
    return {
        ("big", "value"): Tensor(bits(seed, (768, 1024), DTYPES["float32"]), "float32"),
        ("fixed", "value"): Tensor(bits(0, (600, 1024), DTYPES["float32"]), "float32"),
        ("zipped", "value"): Tensor(np.full((64, 64), 7, np.float32), "float32", GZIP),
        ("small", "value"): Tensor(bits(seed, (16,), DTYPES["int16"]), "int16"),
    }


OTHER_FORMS: list[dict[str, Any]] = [
    {"storage": "packed", "chunk_bytes": 16 * MIB},
    {"storage": "packed", "chunk_bytes": 300_000},
    {"storage": "plain", "chunk_bytes": MIB},
]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("form", OTHER_FORMS, ids=["packed", "small chunks", "plain"])
def test_from_another_step_comes_what_both_have(
    tmp_path: Path, storage: Storage, form: dict[str, Any]
) -> None:
    """By the names of atoms and slots, however the other stores them; the rest is named to the row."""
    path, other = tmp_path / "step-2", tmp_path / "step-1"
    save(path, model(2), storage=storage, chunk_bytes=2 * MIB, workers=1)
    save(other, model(1), **form)
    good = snapshot(path)
    for file in [*path.glob("packs/*"), *path.glob("atoms/*/value/c/**/*")]:
        if file.is_file():
            file.unlink()
    planned = repair(path, [other], dry_run=True)
    repaired = repair(path, [other])
    assert planned == repaired
    assert repaired.survey is not None
    assert [str(loss) for loss in repaired.survey.losses] == [
        "big value all of [768, 1024]",
        "small value all of [16]",
    ]
    assert examine(path).survey == repaired.survey
    assert {problem.code for problem in repaired.problems} == {"UCP-E-MISSING"}
    if storage == "plain":
        after = snapshot(path)
        assert {key for key in good if good[key] != after.get(key)} == {
            key for key in good if "big/value/c" in key or "small/value/c" in key
        }
    again = repair(path, [other])
    assert again.restored == ()
    save(tmp_path / "copy", model(2), chunk_bytes=MIB)
    assert repair(path, [other, tmp_path / "copy"]).is_whole
    assert {key: data for key, data in snapshot(path).items() if key in good} == good


def test_blocks_come_from_several(tmp_path: Path) -> None:
    """Copies that are each damaged elsewhere make one whole; the rows that none has are named."""
    path = tmp_path / "a"
    save(path, model(1), chunk_bytes=16 * MIB, workers=1)
    good = snapshot(path)
    for name, starts in {"b": (0, MIB), "c": (MIB, 2 * MIB)}.items():
        shutil.copytree(path, tmp_path / name)
        corrupt(tmp_path / name, *starts)
    corrupt(path, 0, MIB, 2 * MIB)
    repaired = repair(path, [tmp_path / "b", tmp_path / "c"])
    assert repaired.survey is not None
    assert [str(loss) for loss in repaired.survey.losses] == ["big value [256:512, :] of [768, 1024]"]
    (restored,) = repaired.restored
    assert (restored.nbytes, restored.is_whole) == (2 * MIB, False)
    assert restored.sources == (str(tmp_path / "b"), str(tmp_path / "c"))
    assert not repair(tmp_path / "b", [path]).is_whole
    corrupt(tmp_path / "c", MIB)  # once more: flipped back
    assert repair(path, [tmp_path / "c"]).is_whole
    assert snapshot(path) == good


def corrupt(path: Path, *starts: int) -> None:
    (pack,) = (path / "packs").iterdir()
    with pack.open("r+b") as file:
        for start in starts:
            file.seek(start + 17)
            byte = file.read(1)
            file.seek(start + 17)
            file.write(bytes([byte[0] ^ 0x40]))


def test_nothing_changes_in_a_dry_run(tmp_path: Path) -> None:
    save(tmp_path / "a", model(1), workers=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    corrupt(tmp_path / "a", 0)
    before = snapshot(tmp_path / "a")
    assert repair(tmp_path / "a", [tmp_path / "b"], dry_run=True).is_whole
    assert snapshot(tmp_path / "a") == before


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data.replace(b'"storage"', b'"sturage"'),
        lambda data: data[: len(data) * 3 // 4],
        lambda data: data.replace(b'"format_version": 0', b'"format_version": 1'),
    ],
    ids=["flip", "cut", "version"],
)
def test_a_root_document_comes_back_where_it_is_known_which(
    tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    """UCP-W-021: from a copy with the same root digest, in the place of one that is there."""
    save(tmp_path / "a", model(1), workers=1)
    save(tmp_path / "other", model(1), workers=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    root = tmp_path / "a" / ROOT_KEY
    data = root.read_bytes()
    root.write_bytes(harm(data))
    assert root.read_bytes() != data
    with pytest.raises(UcpError, match="none of the others is known to have the same one"):
        repair(tmp_path / "a", [tmp_path / "other"])
    repaired = repair(tmp_path / "a", [tmp_path / "other", tmp_path / "b"])
    assert repaired.is_whole
    assert root.read_bytes() == data
    assert validate(tmp_path / "a") == []


def test_a_root_document_that_is_gone_is_not_made(tmp_path: Path) -> None:
    """UCP-W-020: without one nothing is committed."""
    save(tmp_path / "a", model(1), workers=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / ROOT_KEY).unlink()
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        repair(tmp_path / "a", [tmp_path / "b"], digest=digest_of(tmp_path / "b"))
    assert not (tmp_path / "a" / ROOT_KEY).exists()


def test_an_empty_root_document_takes_a_digest(tmp_path: Path) -> None:
    save(tmp_path / "a", model(1), workers=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a" / ROOT_KEY).write_bytes(b"")
    with pytest.raises(UcpError, match="by --digest"):
        repair(tmp_path / "a", [tmp_path / "b"])
    assert repair(tmp_path / "a", [tmp_path / "b"], digest=digest_of(tmp_path / "b")).is_whole


def test_an_object_store_is_repaired(tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    save("memory://repair/a", model(1), workers=1)
    save("memory://repair/b", model(1), storage="plain", chunk_bytes=MIB)
    memory = MemoryFileSystem()
    good = {key: memory.cat_file(key) for key in memory.find("/repair/a")}
    for key in good:
        if "/packs/" in key:
            memory.pipe_file(key, good[key][: 2 * MIB + 5])
    repaired = repair("memory://repair/a", ["memory://repair/b"])
    assert repaired.is_whole
    assert {key: memory.cat_file(key) for key in memory.find("/repair/a")} == good
    memory.pipe_file("/repair/a/ucp.json", good["/repair/a/ucp.json"][:-20])
    with pytest.raises(UcpError, match="copy the good checkpoint to a new URL"):
        repair("memory://repair/a", ["memory://repair/a"], digest=None) if False else repair_root(
            memory, good
        )


def repair_root(memory: Any, good: dict[str, bytes]) -> None:
    """Try to bring back a root document from a copy in the same store."""
    for key, data in good.items():
        memory.pipe_file(key.replace("/a/", "/copy/"), data)
    repair("memory://repair/a", ["memory://repair/copy"])


def test_a_source_is_not_opened_to_be_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while it was left the files open that had been read."""
    ucp.save(tmp_path / "a.ucp", {"w": np.ones(3)})
    source = Source(str(tmp_path / "a.ucp"))
    (pack,) = (tmp_path / "a.ucp" / "packs").iterdir()
    assert source.raw(f"packs/{pack.name}", 0, 8) == np.ones(1).tobytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ucpformat.repairing.sources.open_checkpoint", interrupted)
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    source.close()
    assert not before or len(os.listdir("/proc/self/fd")) < before
