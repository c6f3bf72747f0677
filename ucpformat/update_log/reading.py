"""Reading a log: which of its steps count, and their bytes (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from ucpformat.errors import Problem, UcpError, error
from ucpformat.jsonio import MAX_BYTES
from ucpformat.model.dtype import dtype
from ucpformat.model.references import sha256_digest
from ucpformat.model.values import decode
from ucpformat.storage.checksum import crc32c
from ucpformat.update_log.batch import PREFIX_BYTES, parse_header, read_prefix
from ucpformat.update_log.documents import Epoch, LogDocument
from ucpformat.update_log.forms import entry_bytes
from ucpformat.update_log.objects import LogObjects
from ucpformat.update_log.place import (
    LOG_KEY,
    BatchKey,
    LogKeys,
    batch_key,
    epoch_key,
    require_document,
    sorted_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.batch import BatchHeader, StepRecord

__all__ = ["Chain", "RankStep", "StoredBatch", "StoredEpoch", "StoredLog", "Stretch"]

_HEADER_BYTES: Final = 1 << 16
"""What is fetched of a batch of which the header is wanted: that of most."""


class StoredEpoch(NamedTuple):
    """An epoch, and the digest of its document."""

    epoch: Epoch
    digest: str


class StoredBatch(NamedTuple):
    """A batch that was found whole; ``start`` is where its payload begins, ``digest`` that of its header."""

    key: str
    header: BatchHeader
    digest: str
    start: int


class RankStep(NamedTuple):
    """What one rank has logged of a step: its record, and the bytes of its entries."""

    rank: int
    record: StepRecord
    data: memoryview
    at: str

    def with_options(self, options: tuple[Mapping[str, JsonValue], ...]) -> RankStep:
        """Return the step with options that it has from a step before."""
        return self._replace(record=replace(self.record, options=options))


@dataclass(slots=True)
class Chain:
    """The batches of a rank in an epoch that count, in order; ``fault`` says what ends them, if anything does.

    ``is_torn`` says that this is a batch that is not whole; ``behind`` are the first steps of batches behind it.
    """

    first_step: int
    batches: list[StoredBatch] = field(default_factory=list)
    fault: Problem | None = None
    is_torn: bool = False
    behind: list[int] = field(default_factory=list)

    @property
    def stop_step(self) -> int:
        """The step behind the last one that counts."""
        return self.batches[-1].header.stop_step if self.batches else self.first_step

    def ends(self) -> set[int]:
        """Return the steps at which a recovery could end, as far as this rank goes."""
        return {self.first_step, *(batch.header.stop_step for batch in self.batches)}


class Stretch(NamedTuple):
    """Steps ``[first_step, stop_step)`` of an epoch of the branch; the last one has no stop yet."""

    stored: StoredEpoch
    stop_step: int | None


class StoredLog:
    """A log that lies at a path or URL. A context manager.

    Without ``verify`` the bytes of steps are looked at when they are read, and not before: torn batches are found all
    the same.

    Raises:
        UcpError: ``UCP-E-NOT-FOUND`` where there is none, ``UCP-E-MISSING`` where only its document is gone;
            ``UCP-E-LOG``, and what documents raise (SPEC UCP-R-022).
    """

    def __init__(self, url: str, *, verify: bool = True) -> None:
        self.url = url
        self.store = LogObjects(url)
        try:
            data = self._document(LOG_KEY)
            if data is None:
                require_document(self.store)
                message = "there is no log here; a log is a directory with a log.json"
                raise error("UCP-E-NOT-FOUND", message, at=url)
            self.document = LogDocument.parse(data, at=LOG_KEY)
            self.keys = self._keys()
        except BaseException:
            self.store.close()
            raise
        self._epochs: dict[int, StoredEpoch] = {}
        self._chains: dict[tuple[int, int, int], Chain] = {}
        self._batches: dict[tuple[BatchKey, str | None], StoredBatch | None] = {}
        self._is_verified = verify

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()

    def close(self) -> None:
        """Release file handles."""
        self.store.close()

    def _document(self, key: str) -> bytes | None:
        data = self.store.document(key, MAX_BYTES)
        if data is not None and len(data) > MAX_BYTES:
            size = self.store.size(key)
            raise error("UCP-E-LIMIT", f"the document has {size} bytes, more than {MAX_BYTES}", at=key)
        return data

    def _keys(self) -> LogKeys:
        """Return what lies in the log; a listing of an object store may be late to show the epoch that is newest."""
        there = [*self.store.keys()]
        if self.store.is_remote and LOG_KEY not in there:
            message = "nothing is listed here, as on some web servers, but the keys of a log have to be; read a copy"
            raise error("UCP-E-STORE", message, at=self.url)
        found = sorted_keys(there)
        while self.store.is_remote:
            following = found.epochs[-1] + 1 if found.epochs else 0
            if not self.store.has(epoch_key(following)):
                break
            # The listing may be older than what this epoch goes on from.
            found = sorted_keys(self.store.keys())
            if following not in found.epochs:
                found = found._replace(epochs=sorted([*found.epochs, following]))
        return found

    def has_batches(self) -> bool:
        """Return whether there are batches; raises as `epoch`."""
        if self.keys.batches or not (self.store.is_remote and self.keys.epochs):
            return bool(self.keys.batches)
        newest = self.epoch(self.keys.epochs[-1]).epoch
        return any(
            self.store.has(batch_key(BatchKey(newest.epoch, rank, newest.first_step)))
            for rank in range(newest.ranks)
        )

    def epoch(self, number: int) -> StoredEpoch:
        """Return an epoch.

        Raises:
            UcpError: ``UCP-E-MISSING`` where there is none, ``UCP-E-LOG`` for one of another log or number, and what
                documents raise.
        """
        if number not in self._epochs:
            key = epoch_key(number)
            data = self._document(key)
            if data is None:
                raise error("UCP-E-MISSING", f"epoch {number} of the log is gone", at=key)
            epoch = Epoch.parse(data, at=key)
            if epoch.log != self.document.id:
                raise error("UCP-E-LOG", "this is an epoch of another log", at=f"{key}#/log")
            if epoch.epoch != number:
                raise error("UCP-E-LOG", f"this is the document of epoch {epoch.epoch}", at=f"{key}#/epoch")
            self._epochs[number] = StoredEpoch(epoch, sha256_digest(data))
        return self._epochs[number]

    def branch(self) -> list[Stretch]:
        """Return the epochs whose steps count, the earliest first; none of a log without epochs.

        Raises:
            UcpError: as `before`.
        """
        found: list[Stretch] = []
        stored, stop = self.epoch(self.keys.epochs[-1]) if self.keys.epochs else None, None
        while stored is not None:
            found.append(Stretch(stored, stop))
            stop = stored.epoch.first_step
            stored = self.before(stored.epoch)
        return found[::-1]

    def before(self, epoch: Epoch) -> StoredEpoch | None:
        """Return the epoch that another goes on from, None for the first one.

        Raises:
            UcpError: as `epoch`, and ``UCP-E-LOG`` where it does not go on from there as it says (SPEC UCP-D-153).
        """
        after = epoch.after
        if after is None:
            return None
        found = self.epoch(after.epoch)
        if found.digest != after.digest:
            message = f"epoch {after.epoch} is not the one that it went on from"
            raise error("UCP-E-LOG", message, at=f"{epoch_key(epoch.epoch)}#/after/digest")
        if found.epoch.first_step > epoch.first_step:
            message = f"epoch {after.epoch} begins behind it, with step {found.epoch.first_step}"
            raise error("UCP-E-LOG", message, at=f"{epoch_key(epoch.epoch)}#/first_step")
        return found

    def chain(self, number: int, rank: int, begin: int = 0) -> Chain:
        """Return the batches of a rank in an epoch that count from a state on; raises as `epoch`.

        Every byte of them was looked at, unless the log was opened without ``verify``.
        """
        known = self._chains.get((number, rank, begin))
        if known is not None:
            return known
        stored = self.epoch(number)
        there = [key.first_step for key in self.keys.batches if key[:2] == (number, rank)]
        # Of those that end before, some may be removed, or damaged: they are of no concern.
        there = there[max(0, sum(first <= begin for first in there) - 1) :]
        chain = Chain(there[0] if there else stored.epoch.first_step)
        previous = stored.digest if chain.first_step == stored.epoch.first_step else None
        checked = {key for key, _ in self._batches}
        keys = [BatchKey(number, rank, first) for first in there]
        names = [batch_key(key) for key in keys if key not in checked]
        # Of a batch whose steps are not looked at the header is enough.
        most = {} if self._is_verified else {"most": _HEADER_BYTES}
        with closing(self.store.ahead(names, **most)) as ahead:
            while chain.fault is None:
                is_gap = not there or there[0] > chain.stop_step
                if is_gap and self._is_late(number, rank, chain.stop_step):
                    there.insert(0, chain.stop_step)
                elif not there:
                    break
                elif is_gap:
                    at = batch_key(BatchKey(number, rank, chain.stop_step))
                    message = "the batch is missing, and there are others behind it"
                    chain.fault = Problem("UCP-E-LOG", at, message)
                    break
                key = BatchKey(number, rank, there.pop(0))
                if key.first_step < chain.stop_step:
                    chain.fault = Problem("UCP-E-LOG", batch_key(key), "it begins within the batch before it")
                    break
                if key in keys and key not in checked:
                    next(ahead)
                try:
                    if (key, previous) not in self._batches:
                        self._batches[key, previous] = self._batch(key, stored.epoch, previous)
                    batch = self._batches[key, previous]
                except UcpError as refusal:
                    if self.store.has_not_answered(refusal):
                        raise
                    chain.fault = refusal.problem()
                    break
                if batch is None:
                    chain.is_torn = True
                    chain.fault = Problem("UCP-E-LOG", batch_key(key), "the batch is shorter than it says")
                    break
                chain.batches.append(batch)
                previous = batch.digest
        chain.behind = there
        self._chains[number, rank, begin] = chain
        return chain

    def _is_late(self, number: int, rank: int, step: int) -> bool:
        """Return whether an object store has a batch that its listing does not show: it may be late with the last ones.

        Others of a rank than the last one of the log are looked for where one is missing.
        """
        is_open = not self.keys.epochs or number == self.keys.epochs[-1]
        return self.store.is_remote and is_open and self.store.has(batch_key(BatchKey(number, rank, step)))

    def _batch(self, key: BatchKey, epoch: Epoch, previous: str | None) -> StoredBatch | None:
        """Return a batch that was checked, None where it is torn; raises what is wrong with it."""
        return self.store.again_if_harmed(batch_key(key), partial(self._checked, key, epoch, previous))

    def _checked(self, key: BatchKey, epoch: Epoch, previous: str | None) -> StoredBatch | None:
        name = batch_key(key)
        size = self.store.size(name) or 0
        prefix = read_prefix(self.store.read(name, 0, min(size, PREFIX_BYTES)), at=name)
        if prefix is None:
            return None
        if prefix.header_bytes > MAX_BYTES:
            message = f"the header has {prefix.header_bytes} bytes, more than {MAX_BYTES}"
            raise error("UCP-E-LIMIT", message, at=name)
        start = PREFIX_BYTES + prefix.header_bytes
        if size < start:
            return None
        header = parse_header(self.store.read(name, PREFIX_BYTES, start), prefix, at=name)
        if (header.epoch, header.rank, header.first_step) != key:
            raise error("UCP-E-LOG", "the batch is not the one that its key says", at=name)
        for at, value in header.tagged_values(name):
            decode(value, at=at)
        for problem in header.problems(epoch, name):
            raise error(problem.code, problem.message, at=problem.at)
        if previous is not None and header.previous != previous:
            message = "the batch goes on from another one than that before it"
            raise error("UCP-E-LOG", message, at=f"{name}#/previous")
        for number, step in enumerate(header.steps):
            _require_length(step, epoch, f"{name}#/steps/{number}/length")
        if size < start + header.payload_bytes:
            return None
        if size > start + header.payload_bytes:
            raise error("UCP-E-LOG", "the batch is longer than its steps", at=name)
        batch = StoredBatch(name, header, prefix.digest, start)
        for _ in self.steps_of(batch) if self._is_verified else ():
            pass
        return batch

    def steps_of(self, batch: StoredBatch) -> Iterator[RankStep]:
        """Yield the steps of a batch with their bytes.

        Raises:
            UcpError: ``UCP-E-CHECKSUM``, and what reading raises.
        """
        start = batch.start
        for number, record in enumerate(batch.header.steps):
            at = f"{batch.key}#/steps/{number}"
            read = partial(self._step, batch.key, start, record, at)
            data = self.store.again_if_harmed(batch.key, read)
            start += record.length
            yield RankStep(batch.header.rank, record, data, at)

    def _step(self, key: str, start: int, record: StepRecord, at: str) -> memoryview:
        data = memoryview(self.store.read(key, start, start + record.length))
        if crc32c(data) != record.checksum:
            raise error("UCP-E-CHECKSUM", "the bytes of the step do not match their checksum", at=at)
        return data


def _require_length(step: StepRecord, epoch: Epoch, at: str) -> None:
    length = 0
    for entry in step.entries:
        piece = epoch.pieces[entry.piece]
        length += entry_bytes(entry, piece.shape, dtype(epoch.tensors[piece.tensor].dtype).item_bytes)
    if length != step.length:
        raise error("UCP-E-LOG", f"its entries have {length} bytes, and it says {step.length}", at=at)
