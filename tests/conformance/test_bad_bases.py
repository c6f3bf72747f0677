"""Bases that are not what they seem, and increments that break a rule, in directories and in object stores.

Each is a registered error that names the base or the place, before any pack is read; nothing is left at the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem
from ucp_conformance.vectors import Vector, all_vectors

import ucpformat as ucp
from tests.builders import BLANK, dump, read_everything, result_or_refusal, seal
from ucpformat.cli import main
from ucpformat.errors import UcpError
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.storage.stores.remote.objects import RemoteObjects

MEDIA: Final = ("directory", "store")


@pytest.fixture(params=MEDIA)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path) if request.param == "directory" else f"memory://{uuid4().hex}"
    MemoryFileSystem.store.clear()


def files_of(place: str) -> dict[str, bytes]:
    filesystem, path = fsspec.url_to_fs(place)
    found = filesystem.find(path) if filesystem.exists(path) else []
    return {one.removeprefix(path).lstrip("/"): filesystem.cat_file(one) for one in found}


def remove(place: str) -> None:
    filesystem, path = fsspec.url_to_fs(place)
    filesystem.rm(path, recursive=True)


def put(place: str, files: Mapping[str, bytes]) -> None:
    filesystem, path = fsspec.url_to_fs(place)
    for key, data in files.items():
        filesystem.makedirs(f"{path}/{key}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{path}/{key}", data)


@contextmanager
def looked_at() -> Iterator[list[str]]:
    """Keys that stores were asked for bytes of."""
    found: list[str] = []

    def noting(kind: Any, name: str) -> Any:
        real = getattr(kind, name)

        def call(self: Any, key: str, *rest: Any) -> Any:
            found.append(key)
            return real(self, key, *rest)

        return mock.patch.object(kind, name, call)

    local = [noting(LocalObjects, name) for name in ("read", "read_into", "pieces", "mapped")]
    remote = [noting(RemoteObjects, name) for name in ("read", "pieces")]
    with local[0], local[1], local[2], local[3], remote[0], remote[1]:
        yield found


STATE: Final[dict[str, Any]] = {
    "table": np.arange(1, 4001, dtype=np.float32).reshape(100, 40),
    "w": np.ones(7),
}


def _root(change: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, bytes]], None]:
    """Change the root document, and seal it again."""

    def changed(files: dict[str, bytes]) -> None:
        root = json.loads(files["ucp.json"])
        change(root)
        files["ucp.json"] = seal(dump({**root, "digest": BLANK}))

    return changed


REFUSED: Final[dict[str, tuple[Callable[[dict[str, bytes]], object], str]]] = {
    "of another version": (_root(lambda root: root.update(format_version=7)), "UCP-E-VERSION"),
    "with an unknown feature": (
        _root(lambda root: root.update(read_features=["telepathy"])),
        "UCP-E-FEATURE",
    ),
    "of another format": (_root(lambda root: root.update(format="safetensors")), "UCP-E-FORMAT"),
    "with a root document that was changed": (
        lambda files: files.update({"ucp.json": files["ucp.json"].replace(b'"step":1', b'"step":2')}),
        "UCP-E-DIGEST",
    ),
    "with half a root document": (
        lambda files: files.update({"ucp.json": files["ucp.json"][:100]}),
        "UCP-E-JSON",
    ),
    "that was never committed": (lambda files: files.pop("ucp.json"), "UCP-E-NOT-FOUND"),
    "that was removed": (lambda files: files.clear(), "UCP-E-NOT-FOUND"),
}


def _saved(path: str, base: str) -> object:
    return ucp.save(path, STATE, base=base)


def _saved_in_background(path: str, base: str) -> object:
    return ucp.async_save(path, STATE, base=base).wait()


def _declared(path: str, base: str) -> object:
    return ucp.save(path, STATE, base=base, changed={"table": [3], "w": []})


SAVES: Final = (_saved, _saved_in_background, _declared)


@pytest.mark.parametrize("how", SAVES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_base_is_refused_by_its_root_document(
    place: str, name: str, how: Callable[[str, str], object]
) -> None:
    """Before anything of it but this was read."""
    change, code = REFUSED[name]
    ucp.save(f"{place}/good", STATE, step=1)
    files = files_of(f"{place}/good")
    change(files)
    put(f"{place}/base", files)
    with looked_at() as keys, pytest.raises(UcpError, match=code) as caught:
        how(f"{place}/new", f"{place}/base")
    assert "base" in str(caught.value)
    assert set(keys) <= {"ucp.json"}
    assert files_of(f"{place}/new") == {}


@pytest.mark.parametrize("name", REFUSED)
def test_a_manager_saves_all_instead(place: str, name: str) -> None:
    """Or shares with the newest one that is committed."""
    with ucp.CheckpointManager(place, incremental=True) as manager:
        manager.save(2, STATE)
        ucp.save(f"{place}/spare", STATE, step=1)
        files = files_of(f"{place}/spare")
        manager.save(1, STATE)
    REFUSED[name][0](files)
    remove(f"{place}/step-2.ucp")
    put(f"{place}/step-2.ucp", files)
    is_there = "ucp.json" in files
    with ucp.CheckpointManager(place, incremental=True) as manager:
        report = manager.save(3, STATE).wait()
        assert manager.steps() == ([1, 2, 3] if is_there else [1, 3])
    assert (report.stored.shared == 0) is is_there
    assert ucp.validate(f"{place}/step-3.ucp") == []


LOST: Final[dict[str, Callable[[str], bool]]] = {
    "its packs": lambda key: key.startswith("packs/"),
    "its table": lambda key: key.endswith(".bin"),
    "its pack list": lambda key: key.endswith("-packs.json"),
    "its index": lambda key: key.endswith("-0.json"),
}


@pytest.mark.parametrize("how", [_saved, _saved_in_background])
@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "shorter"])
@pytest.mark.parametrize("name", LOST)
def test_of_a_base_that_has_lost_something_nothing_is_shared(
    place: str, name: str, is_there: bool, how: Callable[[str, str], object]
) -> None:
    ucp.save(f"{place}/good", STATE)
    files = files_of(f"{place}/good")
    for key in [key for key in files if LOST[name](key)]:
        data = files.pop(key)
        if is_there:
            files[key] = data[:-1]
    put(f"{place}/base", files)
    report = how(f"{place}/new", f"{place}/base")
    assert isinstance(report, ucp.SaveReport)
    assert report.stored.shared == 0
    assert ucp.validate(f"{place}/new") == []
    found: Any = ucp.load(f"{place}/new")
    assert np.array_equal(found["table"], STATE["table"])


VECTORS: Final = {vector.id: vector for vector in all_vectors()}
BROKEN: Final = [name for name in VECTORS if name.startswith(("bad/rows/", "bad/increments/"))]


def _check(vector: Vector, op: str) -> Mapping[str, Any] | None:
    found: list[Mapping[str, Any]] = [one for one in vector.case["checks"] if one["op"] == op]
    return found[0] if found else None


def _is_refused(vector: Vector) -> bool:
    """Say whether readers have to refuse it, and not validators alone."""
    read = _check(vector, "read") or _check(vector, "open")
    return read is not None and "error" in read["expect"]


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_an_increment_is_a_registered_error_everywhere(place: str, name: str) -> None:
    """Row sets with gaps, behind the last row, of other lengths; too many layers; packs that are missing or outside."""
    vector, path = VECTORS[name], f"{place}/bad"
    put(path, vector.checkpoint)
    wanted = _check(vector, "validate")
    assert wanted is not None
    codes = set(wanted["expect"].get("problems", {}).get("codes", ()))
    found = [problem for problem in ucp.validate(path) if problem.severity == "error"]
    assert codes <= {problem.code for problem in found}
    assert bool(found) == bool(codes) or wanted["expect"].get("problems", {}).get("also")
    said = CliRunner().invoke(main, ["validate", path], catch_exceptions=False)
    assert said.exit_code == (1 if found else 0)
    assert all(code in said.output for code in codes)
    refusal = result_or_refusal(lambda: read_everything(path))
    read, is_refused = _check(vector, "read") or _check(vector, "open"), _is_refused(vector)
    if read is not None and is_refused:
        assert isinstance(refusal, UcpError)
        assert refusal.code in read["expect"]["error"]["codes"]
    for wrong, command in (
        (found, ["cp", path, f"{place}/cp"]),
        (is_refused, ["convert", path, f"{place}/flat"]),
        (is_refused, ["diff", path, path, "--bytes"]),
    ):
        done = CliRunner().invoke(main, command, catch_exceptions=False)
        assert not wrong or (done.exit_code, "UCP-E-" in done.output) == (1, True), command
    assert not found or files_of(f"{place}/cp") == {}


def _read(path: str, atom: str, slot: str) -> object:
    with ucp.open(path) as checkpoint:
        return checkpoint[atom][slot].read()


IN_TABLES: Final = [
    name
    for name in BROKEN
    if name.startswith("bad/rows/") and name != "bad/rows/under-damage" and _is_refused(VECTORS[name])
]


@pytest.mark.parametrize("name", IN_TABLES)
def test_a_table_that_is_wrong_is_refused_before_a_pack_is_read(place: str, name: str) -> None:
    vector = VECTORS[name]
    check = _check(vector, "read")
    assert check is not None
    put(f"{place}/bad", vector.checkpoint)
    put(f"{place}/good", VECTORS[vector.case["mutates"]].checkpoint)
    with looked_at() as keys:
        _read(f"{place}/good", check["params"]["atom"], check["params"]["slot"])
    assert any(key.startswith("packs/") for key in keys)
    with looked_at() as keys, pytest.raises(UcpError):
        _read(f"{place}/bad", check["params"]["atom"], check["params"]["slot"])
    assert not any(key.startswith("packs/") for key in keys)


def _rewritten(path: str, base: str) -> object:
    """Save what the parent of the vectors has, as an increment of a broken one."""
    arrays = read_everything(f"{path}-parent")
    with ucp.open(f"{path}-parent") as parent:
        specs = [
            ucp.AtomSpec(
                name, {slot: ucp.SlotSpec(view.dtype.name, view.shape) for slot, view in atom.items()}
            )
            for name, atom in parent.items()
        ]
        chunk_bytes = parent.root.chunk_bytes
    with ucp.CheckpointWriter(path, specs, base=base, chunk_bytes=chunk_bytes) as writer:
        for (name, slot), array in arrays.items():
            writer.write(name, slot, array)
    return arrays


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_increment_as_a_base_breaks_nothing(place: str, name: str) -> None:
    """It is refused, or what is right of it is shared: the new checkpoint is whole."""
    vector = VECTORS[name]
    put(f"{place}/bad", vector.checkpoint)
    put(f"{place}/new-parent", VECTORS[vector.case["mutates"]].checkpoint)
    result = result_or_refusal(lambda: _rewritten(f"{place}/new", f"{place}/bad"))
    if isinstance(result, UcpError):
        assert files_of(f"{place}/new") == {}
        return
    assert ucp.validate(f"{place}/new") == []
    again = read_everything(f"{place}/new")
    assert {key: one.tobytes() for key, one in again.items()} == {
        key: one.tobytes() for key, one in read_everything(f"{place}/new-parent").items()
    }
