"""One attempt to write the files of an export: handed out to workers, taken over when whole, closed at the end.

Workers write files under other names; this process alone gives them their own, and notes it in the directory's journal,
so that whatever dies, a file that is there is whole, and a later attempt goes on from there (`out_directory`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.content import BLOCK_BYTES, Content
from ucpformat.conversion.engine.journal import source_state
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.out_directory import (
    OutDirectory,
    Written,
    new_file,
    storing,
    temporary_file,
)
from ucpformat.conversion.engine.pool import Pool, open_pool, run_tasks, workers_within
from ucpformat.conversion.engine.work_order import batch_size, job_digest, require_same
from ucpformat.conversion.engine.worker import Kept
from ucpformat.errors import error
from ucpformat.storage.workers import task_groups
from ucpformat.tensor_files.out_files import OutFile, OutFiles

if TYPE_CHECKING:
    from ucpformat.conversion.contract.job import Job
    from ucpformat.conversion.engine.work_order import Recipe

__all__ = ["Export", "ExportOrder"]

_MAX_FILES: Final = 256

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What a worker elsewhere is told: how to come to the same plan, and where its files go."""

    recipe: Recipe
    destination_format: str
    destination: str
    settings: Mapping[str, str]
    durable: bool
    digest: str
    """Of the job and of the plan's files (`_digest`)."""


class Export:
    """``recipe``, ``destination_format`` and ``settings`` lead other processes, and later ones, to the same files.

    ``job`` is what is exported; without it no other process takes part, and nothing can be resumed.
    """

    def __init__(
        self,
        files: OutFiles,
        path: str | os.PathLike[str],
        options: EngineOptions,
        *,
        job: Job | None = None,
        recipe: Recipe | None = None,
        destination_format: str = "",
        settings: Mapping[str, str] | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self._files = files
        self._root = Path(path)
        self._options = options
        self._durable = options.durability == "fsync"
        self._progress = progress
        self._chunk_bytes = max(BLOCK_BYTES, 0 if job is None else job.chunk_bytes)
        self._order: ExportOrder | None = None
        for file in files.parts:
            _check_name(file.name)
        if job is not None and recipe is not None:
            digest = _digest(job, files)
            destination = str(self._root.absolute())
            self._order = ExportOrder(
                recipe, destination_format, destination, dict(settings or {}), self._durable, digest
            )

    def run(self) -> None:
        """Write everything.

        Raises:
            UcpError: ``UCP-E-EXISTS`` where something lies; ``UCP-E-LIMIT`` where not one worker fits into the memory;
                ``UCP-E-STORE`` where the medium fails, such as a full disk; what the source, the exporter and the
                workers raise. Nothing is left then, unless this is one to be resumed, or was interrupted from outside.
        """
        with storing(self._root):
            self._run()

    def _run(self) -> None:
        if self._files.is_single:
            self._within(1)
            (file,) = self._files.parts
            with new_file(self._root, durable=self._durable) as stream:
                _write(file, stream, self._progress)
            return
        resume = self._options.resume and self._order is not None
        directory = OutDirectory(self._root, self._plan(), resume=resume, durable=self._durable)
        try:
            self._write_parts(directory)
            directory.settle()
            for file in self._files.closing(directory.finished):
                if file.name not in directory.finished:
                    directory.take(_written(self._root, file, self._durable, lambda _: None))
            directory.finish()
        except BaseException as failure:
            if self._order is None or (isinstance(failure, Exception) and not self._options.resume):
                directory.undo()
            else:
                directory.leave()
            raise

    def _within(self, wanted: int) -> int:
        return workers_within(self._options.memory, wanted, self._chunk_bytes)

    def _plan(self) -> Mapping[str, Any]:
        """Return what tells this export from any other."""
        if self._order is None:
            return {"source": None, "job": None}
        told = [
            self._order.destination_format,
            dict(sorted(self._order.settings.items())),
            self._order.digest,
        ]
        return {"source": source_state(self._order.recipe), "job": told}

    def _write_parts(self, directory: OutDirectory) -> None:
        parts = self._files.parts
        left = [number for number, file in enumerate(parts) if file.name not in directory.finished]
        self._progress(self._files.nbytes - sum(parts[number].nbytes for number in left))
        is_known = self._order is not None
        with open_pool(self._options, self._within, is_known=is_known, is_python_bound=False) as pool:
            self._hand_out(directory, pool, left)

    def _hand_out(self, directory: OutDirectory, pool: Pool, left: Sequence[int]) -> None:
        size = self._options.batch_bytes or batch_size(self._files.nbytes)

        def submit(executor: Executor, numbers: Sequence[int]) -> Future[list[Written]]:
            if pool.is_remote and self._order is not None:
                return executor.submit(write_parts, self._order, numbers)
            return executor.submit(
                _write_numbered, self._root, self._files, numbers, self._durable, self._progress
            )

        def done(numbers: Sequence[int], reports: Sequence[Written]) -> None:
            for written in reports:
                directory.take(written)
            if pool.is_remote:
                self._progress(sum(self._files.parts[number].nbytes for number in numbers))

        parts = self._files.parts
        tasks = task_groups(left, lambda number: parts[number].nbytes, nbytes=size, most=_MAX_FILES)
        run_tasks(pool, tasks, submit, done)


_KEPT: Final[Kept[OutFiles]] = Kept()


def write_parts(order: ExportOrder, numbers: Sequence[int]) -> list[Written]:
    """Write some of an export's files in whatever process this is, under names that are not yet their own.

    Raises:
        UcpError: what opening and reading the source, the exporter and writing raise.
    """
    files = _KEPT.get(f"{order.digest} {order.destination}", partial(_open, order))
    return _write_numbered(Path(order.destination), files, numbers, order.durable, lambda _: None)


def _open(order: ExportOrder, stack: ExitStack) -> OutFiles:
    from ucpformat.conversion.contract.foreign import ExportOptions
    from ucpformat.conversion.contract.registry import registry

    job = stack.enter_context(order.recipe.open()).job
    foreign = registry().format(order.destination_format)
    if foreign.export is None:
        raise AssertionError("what is exported can be written")
    files = foreign.export(Content(job), order.destination, ExportOptions(settings=order.settings)).files
    if files is None:
        raise AssertionError("an export in files has files everywhere")
    require_same(order.recipe, _digest(job, files), order.digest)
    return files


def _digest(job: Job, files: OutFiles) -> str:
    names = [[file.name, file.nbytes] for file in files.parts]
    text = json.dumps([job_digest(job), names])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name != "/".join(parts) or parts[0] == "/" or {"..", "."} & set(parts) or "\0" in name:
        raise error("UCP-E-NAME", f"{name[:100]!r} cannot be the name of a file below the destination")


def _write_numbered(
    root: Path, files: OutFiles, numbers: Sequence[int], durable: bool, progress: Progress
) -> list[Written]:
    return [_written(root, files.parts[number], durable, progress) for number in numbers]


def _written(root: Path, file: OutFile, durable: bool, progress: Progress) -> Written:
    with temporary_file(root, file.name, durable=durable) as (stream, temporary):
        note = _write(file, stream, progress)
        size = stream.seek(0, os.SEEK_END)
    return Written(file.name, temporary, size, note)


def _write(file: OutFile, stream: IO[bytes], progress: Progress) -> Any:
    counted = _Counted(stream, file.nbytes, progress)
    try:
        note = file.write(counted)  # type: ignore[arg-type] # what writers use of a stream
    except Exception:
        if counted.failure is not None:  # an archive that is closed on the way out complains of other things
            raise counted.failure from None
        raise
    counted.finish()
    return note


class _Counted:
    """A stream that tells progress of what is written, in all exactly as many bytes as were foreseen."""

    def __init__(self, stream: IO[bytes], nbytes: int, progress: Progress) -> None:
        self._stream = stream
        self._left = nbytes
        self._progress = progress
        self.failure: OSError | None = None
        self.seek = stream.seek
        self.tell = stream.tell
        self.flush = stream.flush

    def write(self, data: Any) -> int:
        """Write bytes."""
        try:
            done = self._stream.write(data)
        except OSError as problem:
            self.failure = self.failure or problem
            raise
        self._tell(done)
        return done

    def finish(self) -> None:
        """Tell of what was foreseen and did not come."""
        self._tell(self._left)

    def _tell(self, nbytes: int) -> None:
        told = min(nbytes, self._left)
        self._left -= told
        if told:
            self._progress(told)
