"""The directory of an export while it is written: fresh, locked, with a journal of the files that are finished.

A file is written under a name of its own, made durable, noted in the journal, and only then given its final name: what
has that is whole. The journal goes last; while it is there, the directory is no checkpoint, and nobody reads it as one.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.job import JOURNAL
from ucpformat.errors import error
from ucpformat.storage.stores.local_io import in_words, make_parents, sync

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = [
    "OutDirectory",
    "Written",
    "empty_directory",
    "new_file",
    "storing",
    "temporary_file",
]

_PART: Final = ".ucp-part"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is whole and durable, under a name that is not yet its own; both are paths below the directory."""

    name: str
    temporary: str
    size: int
    note: JsonValue = None


@contextmanager
def storing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise failures of the medium below ``path`` as registered ones: a full disk, no permission, too large a file.

    Raises:
        StoreError: ``UCP-E-STORE`` for each ``OSError``.
    """
    try:
        yield
    except OSError as problem:
        at = os.fspath(path) if problem.filename is None else os.fsdecode(problem.filename)
        raise error("UCP-E-STORE", in_words(problem), at=at) from problem


@contextmanager
def empty_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Provide a directory that is new or empty, for writers that make their own files; empty again if the body raises.

    Raises:
        StoreError: ``UCP-E-EXISTS`` for one with something in it.
    """
    root = Path(path)
    existed = root.exists()
    if existed and (not root.is_dir() or any(root.iterdir())):
        raise _taken(root)
    make_parents(root.absolute(), is_durable=True)
    root.mkdir(exist_ok=True)
    try:
        yield root
        sync(root)
        sync(root.absolute().parent)
    except BaseException:
        for folder, folders, names in os.walk(root, topdown=False):
            for name in names:
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))
            for name in folders:
                with suppress(OSError):
                    os.rmdir(os.path.join(folder, name))
        if not existed:
            with suppress(OSError):
                root.rmdir()
        raise


def _taken(root: Path) -> Exception:
    return error("UCP-E-EXISTS", "the destination is not an empty directory; choose another", at=str(root))


@contextmanager
def new_file(path: Path, *, durable: bool) -> Iterator[IO[bytes]]:
    """Provide one new file, which has its name when it is whole; what an attempt has left that was killed is replaced.

    Raises:
        StoreError: ``UCP-E-EXISTS`` where there is something, or another attempt is at work.
    """
    if path.exists() or path.is_symlink():
        raise error("UCP-E-EXISTS", "the destination exists; choose another", at=str(path))
    make_parents(path.absolute(), is_durable=durable)
    temporary = path.with_name(f".{path.name[:50]}{_PART}")
    stream = temporary.open("ab+")  # not "wb": the file of an attempt that is at work stays as it is
    try:
        _lock(stream, path)
        if path.exists():  # while we waited
            raise error("UCP-E-EXISTS", "the destination exists; choose another", at=str(path))
        stream.truncate(0)
        with temporary.open("rb+") as writable:  # appending could not seek
            try:
                yield writable
                writable.flush()
                if durable:
                    os.fsync(writable.fileno())
                temporary.rename(path)
                if durable:
                    sync(path.parent)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
    finally:
        stream.close()


def _lock(stream: IO[Any], path: Path) -> None:
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise error(
            "UCP-E-EXISTS", "another conversion is at work here; choose another path", at=str(path)
        ) from None
    except OSError:
        pass  # a medium without locks


class OutDirectory:
    """A destination that one attempt has taken. ``finished`` has the notes of the files that are there, by name."""

    def __init__(
        self, path: str | os.PathLike[str], plan: Mapping[str, Any], *, resume: bool, durable: bool
    ) -> None:
        """Take the directory: new, empty, or what an attempt has left that was interrupted.

        ``plan`` tells this export from any other. With ``resume`` what is finished stays, else all of it goes.

        Raises:
            UcpError: ``UCP-E-EXISTS`` where something else lies, or another attempt is at work; ``UCP-E-MISMATCH`` and
                ``UCP-E-SOURCE`` where another export was begun than the one to be resumed.
        """
        self.root = Path(path)
        self.finished: dict[str, JsonValue] = {}
        self._durable = durable
        self._names: set[str] = set()
        self._existed = self.root.exists()
        if self._existed and not self.root.is_dir():
            raise _taken(self.root)
        make_parents(self.root.absolute(), is_durable=durable)
        self.root.mkdir(exist_ok=True)
        journal = self.root / JOURNAL
        if not journal.exists() and any(self.root.iterdir()):
            raise _taken(self.root)
        is_fresh = not journal.exists()
        self._journal = journal.open("a+", encoding="utf-8")
        try:
            _lock(self._journal, self.root)
            self._begin(dict(plan), resume=resume)
        except BaseException as failure:
            if is_fresh and isinstance(failure, OSError):  # a disk that is full from the start
                self.undo()
            with suppress(OSError):
                self._journal.close()
            raise

    def _begin(self, plan: dict[str, Any], *, resume: bool) -> None:
        self._journal.seek(0)
        noted = list(_lines(self._journal))
        if noted:
            self._existed = not noted[0].get("made")
        self._names = {line["name"] for line in noted[1:]}
        if noted and resume:
            self._require_same({key: noted[0].get(key) for key in plan}, plan)
            for line in noted[1:]:
                path = self.root / line["name"]
                if path.is_file() and path.stat().st_size == line["size"]:
                    self.finished[line["name"]] = line["note"]
            self._remove(self._names - self.finished.keys())
        else:
            self._remove(self._names)
        self.sweep()
        others = [entry.name for entry in self.root.iterdir() if entry.name != JOURNAL]
        if others and not self.finished:
            (self.root / JOURNAL).unlink()
            raise error(
                "UCP-E-EXISTS", f"the destination holds {others[0]!r}; choose an empty one", at=str(self.root)
            )
        kept = [line for line in noted[1:] if line["name"] in self.finished]
        self._journal.truncate(0)
        for line in (plan | {"made": not self._existed}, *kept):
            self._note(line)
        if self._durable:
            # Before any file has its own name: what lies here without a journal is taken for whole.
            os.fsync(self._journal.fileno())
            sync(self.root)
            sync(self.root.absolute().parent)

    def _require_same(self, noted: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        if noted.get("source") != plan.get("source"):
            raise error(
                "UCP-E-SOURCE",
                "the source changed since this conversion was begun, or is another one; "
                "leave --resume out to begin anew",
                at=str(self.root),
            )
        if noted != plan:
            raise error(
                "UCP-E-MISMATCH",
                "another conversion was begun here, with other options; "
                "give those again, or leave --resume out to begin anew",
                at=str(self.root),
            )

    def _note(self, line: Mapping[str, Any]) -> None:
        self._journal.write(json.dumps(line) + "\n")
        self._journal.flush()

    def take(self, written: Written) -> None:
        """Give a file that is whole its name."""
        self._note({"name": written.name, "size": written.size, "note": written.note})
        self._names.add(written.name)
        os.replace(self.root / written.temporary, self.root / written.name)
        self.finished[written.name] = written.note

    def settle(self) -> None:
        """Make the names of all files durable."""
        self._sync_folders()

    def _sync_folders(self) -> None:
        """Sync the directories that files have been in, those that are left."""
        if self._durable:
            folders = {parent for name in self._names for parent in PurePosixPath(name).parents}
            for folder in sorted(folders, reverse=True):
                if (self.root / folder).is_dir():
                    sync(self.root / folder)

    def finish(self) -> None:
        """Make the directory readable as a source."""
        self.sweep()
        self.settle()
        (self.root / JOURNAL).unlink()
        self._journal.close()
        if self._durable:
            sync(self.root)
            sync(self.root.absolute().parent)

    def leave(self) -> None:
        """Go, and leave what is finished to a later attempt."""
        self.sweep()
        self._journal.close()

    def undo(self) -> None:
        """Leave the directory as it was before this attempt and those that it went on with."""
        self._remove(self._names)
        self.sweep()
        with suppress(OSError):
            self._sync_folders()  # the journal goes last, on the disk as well
        with suppress(OSError):
            (self.root / JOURNAL).unlink()
        with suppress(OSError):  # what it still holds does not fit onto the disk either
            self._journal.close()
        if not self._existed:
            with suppress(OSError):  # somebody else may have put something there
                self.root.rmdir()

    def sweep(self) -> None:
        """Remove what was never finished, by workers that died or were thought dead, and directories left empty."""
        for folder, _, names in os.walk(self.root, topdown=False):
            for name in names:
                if name.endswith(_PART):
                    with suppress(OSError):
                        os.unlink(os.path.join(folder, name))
            if Path(folder) != self.root:
                with suppress(OSError):
                    os.rmdir(folder)

    def _remove(self, names: set[str]) -> None:
        for name in names:
            with suppress(OSError):
                (self.root / name).unlink()


@contextmanager
def temporary_file(root: Path, name: str, *, durable: bool) -> Iterator[tuple[IO[bytes], str]]:
    """Provide a new file for ``name`` below ``root``, and its name until `take`; durable when the body is done."""
    folder = PurePosixPath(name).parent
    (root / folder).mkdir(parents=True, exist_ok=True)
    temporary = str(folder / f".{secrets.token_hex(8)}{_PART}")
    try:
        with (root / temporary).open("xb") as stream:
            yield stream, temporary
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
    except BaseException:
        with suppress(OSError):
            (root / temporary).unlink()
        raise


def _lines(journal: IO[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines of a journal, up to one of which a part is missing."""
    for text in journal:
        try:
            line = json.loads(text)
        except ValueError:
            return
        if not isinstance(line, dict) or not text.endswith("\n"):
            return
        yield line
