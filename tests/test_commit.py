"""The commit protocol: whole or not there, whatever fails and whenever (SPEC 8, 17.4)."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.builders import (
    STORAGES,
    State,
    Tensor,
    bits,
    declare,
    fresh_url,
    result_or_refusal,
    save,
    snapshot,
)
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.storage.stores.local import LocalStore
from ucpformat.validation import validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

STATE: State = {
    ("a", "value"): Tensor(bits(1, (6, 5), DTYPES["float32"]), "float32"),
    ("a", "zero"): Tensor(np.zeros(9, np.int8), "int8"),
}
OPERATIONS = (
    "mkdir", "open", "posix_fallocate", "pwritev", "ftruncate", "fsync", "link", "close", "rename", "flock"
)  # fmt: skip
CLEANING = ("unlink", "rmdir")


def write(url: str | Path, storage: Storage) -> None:
    save(url, STATE, storage=storage, chunk_bytes=64, workers=1)


def is_whole_or_absent(url: str | Path) -> bool:
    """Whether a complete checkpoint is there; fails where something between is."""
    refusal = result_or_refusal(lambda: open_checkpoint(url).close())
    if isinstance(refusal, UcpError):
        assert refusal.code == "UCP-E-NOT-FOUND", refusal
        return False
    assert [problem for problem in validate(url, workers=1) if problem.severity == "error"] == []
    with open_checkpoint(url) as checkpoint:
        for (atom, slot), tensor in STATE.items():
            assert checkpoint[atom][slot].read().tobytes() == tensor.data.tobytes()
    return True


class Medium:
    """Counts operations on files below a directory and fails at one of them.

    ``dies``: from then on everything fails, as if the process were dead; a write has then happened by half.
    """

    def __init__(self, root: Path, fail_at: int, *, dies: bool) -> None:
        self.root = str(root)
        self.fail_at = fail_at
        self.dies = dies
        self.count = 0
        self.log: list[tuple[str, str]] = []

    def place(self, target: object, within: int | None) -> str:
        if isinstance(target, int):
            return os.readlink(f"/proc/self/fd/{target}")
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else ""
        return path if within is None else os.path.join(os.readlink(f"/proc/self/fd/{within}"), path)

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(target: Any, *args: Any, **options: Any) -> Any:
            place = self.place(target, options.get("dir_fd", options.get("src_dir_fd")))
            if not place.startswith(self.root):
                return real(target, *args, **options)
            if name in OPERATIONS:
                self.count += 1
            if self.count == self.fail_at or (self.dies and self.count > self.fail_at):
                if name == "pwritev":
                    real(target, [memoryview(args[0][0])[: args[0][0].nbytes // 2]], args[1])
                if name == "close":
                    real(target)
                raise OSError(errno.ENOSPC, f"injected at {name}")
            self.log.append((name, place))
            return real(target, *args, **options)

        return operation

    @contextmanager
    def installed(self) -> Iterator[None]:
        real = {name: getattr(fcntl if name == "flock" else os, name) for name in (*OPERATIONS, *CLEANING)}
        try:
            for name, operation in real.items():
                setattr(fcntl if name == "flock" else os, name, self.wrap(name, operation))
            yield
        finally:
            for name, operation in real.items():
                setattr(fcntl if name == "flock" else os, name, operation)


def operations_of_a_save(root: Path, storage: Storage) -> Medium:
    medium = Medium(root, -1, dies=False)
    with medium.installed():
        write(root / "c", storage)
    return medium


@pytest.mark.parametrize("dies", [False, True], ids=["an error", "death"])
@pytest.mark.parametrize("storage", STORAGES)
def test_a_failure_at_any_operation_leaves_all_or_nothing(
    tmp_path: Path, storage: Storage, dies: bool
) -> None:
    """UCP-W-002, UCP-W-003; and a later attempt at the same place succeeds."""
    total = operations_of_a_save(tmp_path / "count", storage).count
    assert total > 20
    outcomes = []
    for number in range(1, total + 1):
        root = tmp_path / f"fail{number}"
        medium = Medium(root, number, dies=dies)
        with medium.installed():
            try:
                write(root / "c", storage)
            except (UcpError, OSError):
                finished = False
            else:
                finished = True
        whole = is_whole_or_absent(root / "c")
        # A writer that says it has committed has; one that failed behind the link has too, but does not know.
        assert whole or not finished
        outcomes.append(whole)
        if not whole:
            write(root / "c", storage)
            assert validate(root / "c", workers=1) == []
        assert [path.name for path in root.iterdir() if "debris" in path.name] == []
    assert outcomes[0] is False
    assert outcomes[-1] is True


@pytest.mark.parametrize("storage", STORAGES)
def test_everything_is_durable_before_the_root_appears(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-002: files and directories are synced, in this order, then comes the link, then its directory."""
    log = operations_of_a_save(tmp_path / "root", storage).log
    checkpoint = tmp_path / "root" / "c"
    links = [number for number, (name, _) in enumerate(log) if name == "link"]
    assert len(links) == 1
    before, after = log[: links[0]], log[links[0] + 1 :]
    staged = log[links[0]][1]
    for path in [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "ucp.json"] + [
        staged
    ]:
        written = max(number for number, entry in enumerate(before) if entry == ("pwritev", str(path)))
        assert ("fsync", str(path)) in before[written:], path
    directories = [checkpoint.parent, checkpoint, *(path for path in checkpoint.rglob("*") if path.is_dir())]
    for directory in directories:
        made = [
            number
            for number, (name, place) in enumerate(before)
            if name in ("mkdir", "pwritev") and Path(place).parent == directory and place != staged
        ]
        assert ("fsync", str(directory)) in before[max(made) :], directory
    assert ("fsync", str(checkpoint)) in after
    assert not any(name == "pwritev" for name, _ in after)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.test_commit import Medium, write

class Deadly(Medium):
    def wrap(self, name, real):
        inner = super().wrap(name, real)
        def operation(*args, **options):
            try:
                return inner(*args, **options)
            except OSError as reason:
                if "injected" in str(reason):
                    os.kill(os.getpid(), signal.SIGKILL)
                raise
        return operation

root, storage, numbers = Path(sys.argv[2]), sys.argv[3], [int(text) for text in sys.argv[4:]]
for number in numbers:
    child = os.fork()
    if child == 0:
        place = root / str(number)
        with Deadly(place, number, dies=True).installed():
            write(place / "c", storage)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("storage", STORAGES)
def test_a_killed_writer_leaves_all_or_nothing(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-003, with processes that really die of SIGKILL, and whose locks die with them."""
    total = operations_of_a_save(tmp_path / "count", storage).count
    moments = [1, 2, 3, total // 3, total // 2, total - 8, total - 4, total - 2, total - 1, total]
    repository = str(Path(__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, "-c", KILLED, repository, str(tmp_path), storage, *map(str, moments)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == [str(-signal.SIGKILL)] * len(moments)
    whole = [is_whole_or_absent(tmp_path / str(moment) / "c") for moment in moments]
    assert set(whole) == {False, True}
    for moment, committed in zip(moments, whole, strict=True):
        if not committed:
            write(tmp_path / str(moment) / "c", storage)
            assert validate(tmp_path / str(moment) / "c") == []


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("medium", ["local", "memory"])
def test_a_committed_checkpoint_is_never_touched(tmp_path: Path, storage: Storage, medium: str) -> None:
    """UCP-W-004, UCP-W-005."""
    url = fresh_url(medium, tmp_path)
    write(url, storage)
    before = content_of(url)
    for other in STORAGES:
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            write(url, other)
    assert content_of(url) == before


def content_of(url: str) -> dict[str, bytes]:
    if not url.startswith("memory://"):
        return snapshot(Path(url))
    memory = MemoryFileSystem()
    return {path: memory.cat_file(path) for path in memory.find(url)}


@pytest.mark.parametrize("medium", ["local", "memory"])
@pytest.mark.parametrize("again", ["commit", "abort", "error"])
def test_nothing_behind_a_commit_undoes_it(tmp_path: Path, again: str, medium: str) -> None:
    """UCP-W-005: a writer that goes on after its commit does no harm to it."""
    url = fresh_url(medium, tmp_path)
    try:
        with CheckpointWriter(url, declare(STATE), storage="plain") as writer:
            for (atom, slot), tensor in STATE.items():
                writer.write(atom, slot, tensor.data)
            writer.commit()
            if again == "commit":
                writer.commit()
            elif again == "abort":
                writer.abort()
            else:
                raise RuntimeError("the user's own")
    except (UcpError, RuntimeError):
        pass
    assert is_whole_or_absent(url)
    assert validate(url) == []


def test_debris_is_cleared_and_foreign_things_are_not(tmp_path: Path) -> None:
    for storage in STORAGES:
        place = tmp_path / storage
        for key in ("index/x.json", "packs/x.pack", "atoms/a/value/c/0", "blobs/x", ".ucp.json.12"):
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(b"debris")
        write(place, storage)
        assert validate(place) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("irreplaceable")
    (tmp_path / "file").write_text("irreplaceable")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("mine", "file", "dangling"):
        with pytest.raises(UcpError, match="UCP-E-EXISTS"):
            write(tmp_path / name, "packed")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "irreplaceable"


def test_a_checkpoint_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "index").mkdir(parents=True)
    (tmp_path / "real" / "index" / "x.json").write_bytes(b"debris")
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", "plain")
    assert (tmp_path / "link").is_symlink()
    assert validate(tmp_path / "link") == []
    assert validate(tmp_path / "real") == []


@pytest.mark.parametrize("storage", STORAGES)
def test_a_failure_of_an_object_store_leaves_all_or_nothing(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-003, at every call of the file system; once before it takes effect, once after."""
    names = ("pipe_file", "open", "exists", "find", "makedirs", "rm_file", "size")
    for late in (False, True):
        number = 0
        while True:
            number += 1
            url = fresh_url("memory", tmp_path)
            calls: list[str] = []
            with injected(names, number, calls, late=late):
                try:
                    write(url, storage)
                except UcpError:
                    finished = False
                else:
                    finished = True
            whole = is_whole_or_absent(url)
            assert whole or not finished
            if not whole:
                # In storage plain, what lies there may be another's, and is removed by who knows better.
                if storage == "plain" and content_of(url):
                    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
                        write(url, storage)
                    MemoryFileSystem().rm(url, recursive=True)
                write(url, storage)
                assert validate(url) == []
            if len(calls) < number:
                break
        assert number > 10


@contextmanager
def injected(names: tuple[str, ...], number: int, calls: list[str], *, late: bool) -> Iterator[None]:
    real = {name: getattr(MemoryFileSystem, name) for name in names}

    def wrap(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) != number:
                return method(*args, **options)
            if late:
                method(*args, **options)
            raise ConnectionError(f"injected at {name}")

        return call

    try:
        for name, method in real.items():
            setattr(MemoryFileSystem, name, wrap(name, method))
        yield
    finally:
        for name, method in real.items():
            setattr(MemoryFileSystem, name, method)


def test_a_writer_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with (
        patch.object(LocalStore, "create", side_effect=RuntimeError("disk on fire")),
        pytest.raises(RuntimeError, match="disk on fire"),
    ):
        CheckpointWriter(tmp_path / "c", [AtomSpec("a", {"value": SlotSpec("int8", ())})], storage="plain")
    assert not (tmp_path / "c").exists()
    write(tmp_path / "c", "plain")
