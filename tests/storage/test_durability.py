"""What is on the disk when: bytes and names before the root document, and that before anybody hears of it (SPEC 8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.out_directory import OutDirectory
from ucpformat.distributed.save import SaveOptions
from ucpformat.manager.run_directory import place_at
from ucpformat.state_dict.save_load import save_state

STATE = {"model": {"w": np.arange(3000, dtype=np.float32), "b": np.arange(7)}, "step": 1}


def inode(path: str | Path) -> int:
    return os.stat(path, follow_symlinks=False).st_ino


class Disk:
    """Which files and directories were synced, and what was synced when something was given a name or removed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: set[int] = set()
        self.events: list[tuple[str, str, set[int]]] = []
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            self.synced.add(os.fstat(descriptor).st_ino)

        patch.setattr(os, "fsync", fsync)
        for call in ("link", "replace", "unlink"):
            patch.setattr(os, call, self._noting(call, getattr(os, call)))

    def _noting(self, call: str, real: Callable[..., None]) -> Callable[..., None]:
        def act(*arguments: Any, **options: Any) -> None:
            real(*arguments, **options)
            self.events.append((call, os.path.basename(os.fspath(arguments[-1])), self.synced))
            if call != "unlink" or arguments[-1] == "ucp.json":
                # What is synced from here on counts for what comes behind.
                self.synced = set()

        return act

    def before(self, call: str, name: str) -> set[int]:
        """All that was synced before the last such call."""
        number = max(place for place, event in enumerate(self.events) if event[:2] == (call, name))
        return set().union(*(synced for _, _, synced in self.events[: number + 1]))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def everything(folder: Path) -> dict[str, int]:
    return {str(path): inode(path) for path in (folder, *folder.rglob("*")) if path.name != "ucp.json"}


@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_all_of_a_checkpoint_is_on_the_disk_before_its_root_document(
    tmp_path: Path, disk: Disk, storage: Any
) -> None:
    """UCP-W-002: with the directories that were made for it, in which their names are."""
    path = tmp_path / "deep" / "er" / "c.ucp"
    ucp.save(path, STATE, storage=storage)
    synced = disk.before("link", "ucp.json")
    wanted = everything(path) | {str(one): inode(one) for one in path.parents if one >= tmp_path}
    assert [one for one, number in wanted.items() if number not in synced] == []
    assert inode(path / "ucp.json") in synced
    assert inode(path) in disk.synced, "the name of the root document, at last"


@pytest.mark.parametrize("is_increment", [False, True])
def test_a_commit_syncs_everything_in_one_round(tmp_path: Path, is_increment: bool) -> None:
    """Each round waits for the disk: nothing is synced twice, and nothing after the round but the name of the root."""
    base = tmp_path / "base.ucp" if is_increment else None
    if base is not None:
        ucp.save(base, STATE)
    path = tmp_path / "c.ucp"
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        ucp.save(path, STATE, base=base)
    above = {inode(tmp_path), inode(tmp_path.parent)}
    wanted = {*everything(path).values(), *above, inode(path / "ucp.json")}
    assert sorted(synced) == sorted([*wanted, inode(path)])
    assert synced[-1] == inode(path)


def test_ranks_sync_what_they_write(tmp_path: Path, disk: Disk) -> None:
    path = tmp_path / "c.ucp"
    mesh = ucp.Mesh((ucp.MeshAxis("dp", 2),))
    layouts = {"w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (3000,))}

    def work(group: ThreadGroup) -> None:
        options = SaveOptions("packed", 1 << 20)
        save_state(path, {"w": np.ones(1500)}, options, group=group, layouts=layouts)

    assert run_threads(2, work) == [None, None]
    synced = disk.before("link", "ucp.json")
    assert len(list((path / "packs").iterdir())) == 2
    assert [one for one, number in everything(path).items() if number not in synced] == []


def test_a_root_document_is_gone_before_anything_else_goes(tmp_path: Path, disk: Disk) -> None:
    ucp.save(tmp_path / "step-1.ucp", STATE)
    folder = inode(tmp_path / "step-1.ucp")
    disk.events.clear()
    disk.synced = set()
    place_at(tmp_path).remove("step-1.ucp")
    assert disk.events[0][:2] == ("unlink", "ucp.json")
    assert folder in disk.events[1][2], "the removal itself is on the disk before the next one"


def test_exported_files_are_on_the_disk_before_they_have_names(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    ucp.save(tmp_path / "c.ucp", STATE)
    found: dict[str, bool] = {}
    take = OutDirectory.take

    def taking(directory: OutDirectory, written: Any) -> None:
        synced = set().union(disk.synced, *(one for _, _, one in disk.events))
        found[written.name] = inode(directory.root / written.temporary) in synced
        take(directory, written)
        disk.synced.discard(inode(tmp_path / "out"))

    monkeypatch.setattr(OutDirectory, "take", taking)
    disk.events.clear()
    disk.synced = set()
    convert_checkpoint(
        tmp_path / "c.ucp",
        tmp_path / "out",
        source_format="ucp",
        destination_format="safetensors",
        settings={"max_shard_size": "1KB"},
        drop=["values/*"],
    )
    assert len(found) == 3
    assert all(found.values())
    ends = [
        number for number, (call, name, _) in enumerate(disk.events) if (call, name[:1]) == ("unlink", ".")
    ]
    assert ends, "the journal goes last"
    assert inode(tmp_path / "out") in disk.events[ends[-1]][2], "when the names are on the disk"
