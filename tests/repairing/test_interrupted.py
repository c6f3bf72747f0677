"""A repair that fails or is killed at any call of the system leaves each object whole: the old one, or the good."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.builders import STORAGES, State, Tensor, save, snapshot
from ucpformat.errors import UcpError
from ucpformat.manager.local_place import LocalPlace
from ucpformat.model.root import ROOT_KEY, Storage
from ucpformat.repairing import repair
from ucpformat.storage.stores import restoring
from ucpformat.storage.stores.local_io import exchange_names

STATE: State = {
    ("a", "value"): Tensor(np.arange(1, 9, dtype=np.int16), "int16"),
    ("b", "value"): Tensor(np.arange(1, 40, dtype=np.int8), "int8"),
}


class Killed(BaseException):
    """The end of a process: nothing that it would still have done is done."""


class Faulty:
    """The module ``os`` for who restores, whose call of a number fails, and whose later calls do if it is killed."""

    def __init__(self, number: int, *, is_killed: bool) -> None:
        self.left = number
        self.is_killed = is_killed

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        if name not in (
            "open",
            "close",
            "fsync",
            "mkdir",
            "unlink",
            "replace",
            "link",
            "stat",
            "pread",
            "listdir",
        ):
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 or (self.left < 0 and self.is_killed):
                if name == "close":  # descriptors go with their process
                    found(*arguments, **options)
                raise Killed if self.is_killed else OSError(errno.EIO, os.strerror(errno.EIO))
            return found(*arguments, **options)

        return call


def damaged(tmp_path: Path, storage: Storage) -> tuple[Path, Path, dict[str, bytes]]:
    """A checkpoint of which a document is flipped, an object is gone and another cut; a copy; what it was."""
    path, other = tmp_path / "c", tmp_path / "other"
    save(path, STATE, storage=storage, workers=1)
    good = snapshot(path)
    shutil.copytree(path, other)
    (index,) = (path / "index").glob("*-0.json")
    index.write_bytes(index.read_bytes()[::-1])
    if storage == "plain":
        (path / "atoms/a/value/c/0").unlink()
        (path / "atoms/b/value/c/0").write_bytes(b"short")
        (path / "atoms/zarr.json").write_bytes(b"{}")
    else:
        shutil.rmtree(path / "packs")
    return path, other, good


@pytest.mark.parametrize(
    ("storage", "is_killed"), [("plain", True), ("packed", True), ("packed", False)], ids=str
)
def test_nothing_half_written_is_ever_seen(tmp_path: Path, storage: Storage, is_killed: bool) -> None:
    """UCP-W-022."""
    path, other, good = damaged(tmp_path, storage)
    pristine = tmp_path / "pristine"
    shutil.copytree(path, pristine)
    bad = snapshot(path)
    number, is_over = 0, False
    while not is_over:
        number += 1
        faulty = Faulty(number, is_killed=is_killed)
        with patch.object(restoring, "os", faulty), suppress(Killed, UcpError, OSError):
            is_over = repair(path, [other]).is_whole and faulty.left > 0
        found = snapshot(path)
        left = [key for key in found if key not in good]
        assert all(key.startswith(".ucp.json.repair-") for key in left)
        assert all(found.get(key) in (good[key], bad.get(key)) for key in good), number
        assert repair(path, [other]).is_whole
        shutil.rmtree(path)
        shutil.copytree(pristine, path)
    assert number > 20


def test_what_a_killed_repair_has_left_goes_with_the_next(tmp_path: Path) -> None:
    path, other, good = damaged(tmp_path, "packed")
    (path / ".ucp.json.repair-0").write_bytes(b"left")
    assert repair(path, [other]).is_whole
    assert snapshot(path) == good


@pytest.mark.parametrize("storage", STORAGES)
def test_a_checkpoint_that_is_removed_meanwhile_stays_removed(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-020, and what takes its path is not touched."""
    path, other, _ = damaged(tmp_path, storage)
    held = restoring._LocalRestorer._require_committed

    def removed_first(self: Any) -> None:
        if path.exists():
            aside = tmp_path / "aside"
            (path / ROOT_KEY).unlink()
            path.rename(aside)
            shutil.rmtree(aside)
            save(path, {("a", "value"): Tensor(np.zeros(3, np.int8) + 1, "int8")}, storage=storage)
        held(self)

    with (
        patch.object(restoring._LocalRestorer, "_require_committed", removed_first),
        pytest.raises(UcpError, match="removed or replaced meanwhile"),
    ):
        repair(path, [other])
    assert repair(path, []).is_whole


def test_who_removes_and_who_repairs_wait_for_one_another(tmp_path: Path) -> None:
    path, other, good = damaged(tmp_path, "packed")
    refused: list[str] = []

    def while_held(self: Any) -> None:
        for action in (lambda: LocalPlace(str(tmp_path)).remove("c"), lambda: repair(path, [other])):
            with pytest.raises(UcpError) as caught:
                action()
            refused.append(caught.value.message)

    with patch.object(restoring._LocalRestorer, "_require_committed", while_held):
        assert repair(path, [other]).is_whole
    assert "at work here" in refused[0]
    assert "another process repairs" in refused[1]
    assert snapshot(path) == good


def exchange_is_not_known(*_: object) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def root_is_removed(path: Path) -> Callable[..., None]:
    real = exchange_names

    def exchange(*arguments: Any) -> None:
        (path / ROOT_KEY).unlink()
        real(*arguments)

    return exchange


def test_a_root_document_is_exchanged_or_left(tmp_path: Path) -> None:
    """UCP-W-021: where the system cannot do it in one step, or somebody has removed it, nothing is done."""
    path = tmp_path / "c"
    save(path, STATE, workers=1)
    shutil.copytree(path, tmp_path / "other")
    bad = (path / ROOT_KEY).read_bytes().replace(b'"storage"', b'"sturage"')
    (path / ROOT_KEY).write_bytes(bad)
    with (
        patch.object(restoring, "exchange_names", exchange_is_not_known),
        pytest.raises(UcpError, match="cannot exchange two names"),
    ):
        repair(path, [tmp_path / "other"])
    assert (path / ROOT_KEY).read_bytes() == bad
    with (
        patch.object(restoring, "exchange_names", root_is_removed(path)),
        pytest.raises(UcpError, match="removed or replaced meanwhile"),
    ):
        repair(path, [tmp_path / "other"])
    assert not (path / ROOT_KEY).exists()


def test_a_link_is_not_replaced(tmp_path: Path) -> None:
    path, other, _ = damaged(tmp_path, "packed")
    (path / "packs").symlink_to(other / "packs")
    with pytest.raises(UcpError, match="UCP-E-LINK"):
        repair(path, [other])
    assert (path / "packs").is_symlink()
