"""What all ranks have logged of a step, together (SPEC-UPDATE-LOGS section 3)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ucpformat.errors import error
from ucpformat.jsonio import equal
from ucpformat.model.dtype import dtype
from ucpformat.update_log.forms import entry_bytes, places_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.batch import BatchHeader, Entry
    from ucpformat.update_log.documents import Epoch
    from ucpformat.update_log.reading import Chain, RankStep, StoredLog

__all__ = [
    "LoggedEntry",
    "WholeStep",
    "entries_of",
    "require_agreement",
    "require_places",
    "steps_from",
    "whole_steps",
]


@dataclass(frozen=True, slots=True)
class LoggedEntry:
    """An entry of a step with its bytes; ``at`` is the place of its step."""

    entry: Entry
    data: memoryview
    at: str


def entries_of(steps: Sequence[RankStep], epoch: Epoch) -> dict[int, LoggedEntry]:
    """Return what all ranks have logged of one step, by piece."""
    found: dict[int, LoggedEntry] = {}
    for step in steps:
        start = 0
        for entry in step.record.entries:
            piece = epoch.pieces[entry.piece]
            nbytes = entry_bytes(entry, piece.shape, dtype(epoch.tensors[piece.tensor].dtype).item_bytes)
            found[entry.piece] = LoggedEntry(entry, step.data[start : start + nbytes], step.at)
            start += nbytes
    return found


def require_agreement(steps: Sequence[RankStep], epoch: Epoch, pieces: Sequence[Sequence[int]]) -> None:
    """Refuse a step of which ranks say different things (SPEC UCP-D-167, UCP-D-168).

    ``pieces`` are those of the epoch by tensor.

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG``.
    """
    first = steps[0]
    forms: dict[int, set[bool]] = {}
    counts: dict[int, int] = {}
    for step in steps:
        if step.record.skipped != first.record.skipped:
            raise error("UCP-E-LOG", "some ranks have skipped the step, and others have not", at=step.at)
        if not equal(_as_json(step), _as_json(first)):
            raise error(
                "UCP-E-LOG", "the ranks have other options of the step than the first one", at=step.at
            )
        for entry in step.record.entries:
            tensor = epoch.pieces[entry.piece].tensor
            if epoch.tensors[tensor].role != "value":
                counts[tensor] = counts.get(tensor, 0) + 1
                forms.setdefault(tensor, set()).add(entry.form == "rows")
    for tensor, count in counts.items():
        if count != len(pieces[tensor]) or len(forms[tensor]) > 1:
            what = "as rows and otherwise" if len(forms[tensor]) > 1 else "not of every piece"
            message = f"there is a {epoch.tensors[tensor].role} of {epoch.tensors[tensor].atom!r}, and {what}"
            raise error("UCP-E-LOG", message, at=first.at)


def _as_json(step: RankStep) -> JsonValue:
    return [dict(group) for group in step.record.options or ()]


def steps_from(log: StoredLog, chain: Chain, begin: int) -> Iterator[RankStep]:
    """Yield the steps of a rank from one on, each with the options that hold for it."""
    batches = [batch for batch in chain.batches if batch.header.stop_step > begin]
    with closing(log.store.ahead([batch.key for batch in batches])) as ahead:
        for batch, _ in zip(batches, ahead, strict=True):
            options = None
            for number, step in enumerate(log.steps_of(batch), batch.header.first_step):
                options = step.record.options or options
                if number >= begin:
                    yield step if options is None else step.with_options(options)


class WholeStep(NamedTuple):
    """A step of all ranks, who agree on it: what each has, the entries by piece, and headers of batches that end."""

    ranks: list[RankStep]
    entries: dict[int, LoggedEntry]
    ended: list[BatchHeader | None]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return sum(rank.data.nbytes for rank in self.ranks)


def whole_steps(log: StoredLog, epoch: Epoch, chains: Sequence[Chain], begin: int) -> Iterator[WholeStep]:
    """Yield the steps of an epoch from one on, as far as all ranks have them.

    Raises:
        UcpError: as `require_agreement`, and what reading raises.
    """
    ends = [{batch.header.stop_step: batch.header for batch in chain.batches} for chain in chains]
    ranks = [steps_from(log, chain, begin) for chain in chains]
    pieces = epoch.pieces_by_tensor()
    for stop, steps in enumerate(zip(*ranks, strict=False), begin + 1):
        require_agreement(steps, epoch, pieces)
        yield WholeStep([*steps], entries_of(steps, epoch), [one.get(stop) for one in ends])


def require_places(logged: LoggedEntry, shape: tuple[int, ...]) -> None:
    """Refuse places and row numbers that do not ascend, or leave a piece of this shape (SPEC UCP-D-163).

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG``.
    """
    match logged.entry.form:
        case "sparse":
            places_of(logged.entry, logged.data, prod(shape), at=logged.at)
        case "rows":
            rows_of(logged.entry, logged.data, shape[0], at=logged.at)
