"""Batches: steps that one rank has logged, a header and the bytes of its entries (SPEC-UPDATE-LOGS section 3)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, cast

from ucpformat import jsonio
from ucpformat.errors import Problem, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import (
    array,
    choice,
    integer,
    members,
    object_,
    string,
)
from ucpformat.model.references import sha256_string
from ucpformat.model.root import log_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.documents import Epoch

__all__ = [
    "PREFIX_BYTES",
    "BatchHeader",
    "Entry",
    "Form",
    "Options",
    "Prefix",
    "StepRecord",
    "Sum",
    "framed",
    "read_prefix",
]

Form = Literal["dense", "rows", "sparse"]
Options: TypeAlias = "tuple[Mapping[str, JsonValue], ...]"
"""Options of each group of an optimizer by name, tagged values."""

_FORMS: Final = ("dense", "rows", "sparse")
_MAGIC: Final = b"UCPBATCH"
PREFIX_BYTES: Final = len(_MAGIC) + 8 + 32
_SUM: Final = re.compile(r"[0-9a-f]{16}")
_NONE: Final[frozenset[str]] = frozenset()
_ENTRY: Final = frozenset({"piece", "form"})
_COUNTED: Final = _ENTRY | {"count"}
_STEP: Final = frozenset({"length", "checksum", "entries"})
_STEP_OPTIONAL: Final = frozenset({"options", "skipped"})
_BATCH_OPTIONAL: Final = frozenset({"options", "sums"})
_BATCH: Final = frozenset({"log", "epoch", "rank", "first_step", "previous", "steps", "values"})


@dataclass(frozen=True, slots=True)
class Entry:
    """What a step has of a piece; ``count`` elements or rows, None of a dense one, which has all."""

    piece: int
    form: Form
    count: int | None = None

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object of the entry."""
        value: dict[str, JsonValue] = {"piece": self.piece, "form": self.form}
        return value if self.count is None else {**value, "count": self.count}


@dataclass(frozen=True, slots=True)
class Sum:
    """The sum of a rank's pieces of a tensor's slot (SPEC-UPDATE-LOGS section 5)."""

    tensor: int
    slot: str
    sum: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of a rank: ``length`` bytes of the payload with this CRC-32C, which are those of the entries.

    ``options`` are those of each group, tagged values by name, where they are not those of the step before.
    """

    entries: tuple[Entry, ...]
    length: int
    checksum: int
    options: Options | None = None
    skipped: bool = False

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object of the step."""
        value: dict[str, JsonValue] = {}
        if self.options is not None:
            value["options"] = [dict(group) for group in self.options]
        if self.skipped:
            value["skipped"] = True
        entries: list[JsonValue] = [entry.to_json() for entry in self.entries]
        return value | {"length": self.length, "checksum": self.checksum, "entries": entries}


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What a batch says of its steps; ``values`` are the rank's own behind the last one, as are ``options``."""

    log: str
    epoch: int
    rank: int
    first_step: int
    previous: str
    steps: tuple[StepRecord, ...]
    values: Mapping[str, JsonValue]
    sums: tuple[Sum, ...] = ()
    options: Options | None = None

    @property
    def stop_step(self) -> int:
        """The step behind the last one."""
        return self.first_step + len(self.steps)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all steps."""
        return sum(step.length for step in self.steps)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> BatchHeader:
        """Read a structurally sound header; raises ``UCP-E-SCHEMA``."""
        found = members(value, _BATCH, _BATCH_OPTIONAL, at)
        steps_at = pointer(at, "steps")
        return cls(
            log_id(found["log"], pointer(at, "log")),
            integer(found["epoch"], pointer(at, "epoch")),
            integer(found["rank"], pointer(at, "rank")),
            integer(found["first_step"], pointer(at, "first_step")),
            sha256_string(found["previous"], pointer(at, "previous")),
            tuple(
                _step(item, pointer(steps_at, index))
                for index, item in enumerate(array(found["steps"], steps_at, least=1))
            ),
            object_(found["values"], pointer(at, "values")),
            tuple(
                _sum(item, pointer(at, "sums", index))
                for index, item in enumerate(array(found.get("sums", []), pointer(at, "sums")))
            ),
            _options(found, at),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        value: dict[str, JsonValue] = {
            "log": self.log,
            "epoch": self.epoch,
            "rank": self.rank,
            "first_step": self.first_step,
            "previous": self.previous,
            "steps": [step.to_json() for step in self.steps],
            "values": dict(self.values),
        }
        if self.options is not None:
            value["options"] = [dict(group) for group in self.options]
        if self.sums:
            value["sums"] = [
                {"tensor": one.tensor, "slot": one.slot, "sum": f"{one.sum:016x}"} for one in self.sums
            ]
        return value

    def tagged_values(self, at: str) -> Iterator[tuple[str, JsonValue]]:
        """Yield every tagged value with its place."""
        places = [(pointer(at, "values"), self.values)]
        stated = [(at, self.options)]
        stated += [(pointer(at, "steps", n), step.options) for n, step in enumerate(self.steps)]
        for place, options in stated:
            places += [(pointer(place, "options", n), group) for n, group in enumerate(options or ())]
        for place, values in places:
            yield from ((pointer(place, name), value) for name, value in values.items())

    def problems(self, epoch: Epoch, at: str) -> Iterator[Problem]:
        """Yield what contradicts the epoch, beside lengths (SPEC UCP-D-158, UCP-D-160, UCP-D-164 to UCP-D-166)."""
        if self.log != epoch.log:
            yield Problem("UCP-E-LOG", pointer(at, "log"), "this is a batch of another log")
        if self.epoch != epoch.epoch:
            yield Problem("UCP-E-LOG", pointer(at, "epoch"), f"this is a batch of epoch {self.epoch}")
        if self.rank >= epoch.ranks:
            yield Problem("UCP-E-LOG", pointer(at, "rank"), f"the epoch has {epoch.ranks} ranks")
        if self.first_step < epoch.first_step:
            message = f"the epoch begins with step {epoch.first_step}"
            yield Problem("UCP-E-LOG", pointer(at, "first_step"), message)
        for options, place in ((step.options, pointer(at, "steps", n)) for n, step in enumerate(self.steps)):
            yield from _count_problems(options, epoch, place)
        yield from _count_problems(self.options, epoch, at)
        for number, step in enumerate(self.steps):
            yield from self._step_problems(step, number, epoch, pointer(at, "steps", number))
        for number, one in enumerate(self.sums):
            if one.tensor >= len(epoch.tensors):
                message = f"there is no tensor {one.tensor}"
                yield Problem("UCP-E-LOG", pointer(at, "sums", number, "tensor"), message)

    def _step_problems(self, step: StepRecord, number: int, epoch: Epoch, at: str) -> Iterator[Problem]:
        if step.options is None and number == 0:
            yield Problem("UCP-E-LOG", at, "the first step of a batch has options")
        before = -1
        for index, entry in enumerate(step.entries):
            # Steps of models have hundreds of entries, and almost all of them are right.
            if before < entry.piece < len(epoch.pieces):
                piece = epoch.pieces[entry.piece]
                is_gradient = epoch.tensors[piece.tensor].role == "gradient" and not step.skipped
                if is_gradient and piece.rank == self.rank and (entry.form != "rows" or piece.shape):
                    before = entry.piece
                    continue
            place = pointer(at, "entries", index)
            if entry.piece <= before:
                yield Problem("UCP-E-LOG", pointer(place, "piece"), "entries ascend by their pieces")
            before = max(before, entry.piece)
            if entry.piece >= len(epoch.pieces) or epoch.pieces[entry.piece].rank != self.rank:
                message = f"piece {entry.piece} is none of this rank"
                yield Problem("UCP-E-LOG", pointer(place, "piece"), message)
                continue
            piece = epoch.pieces[entry.piece]
            role = epoch.tensors[piece.tensor].role
            if role != "gradient":
                if entry.form != "dense":
                    yield Problem("UCP-E-LOG", pointer(place, "form"), f"a {role} is dense")
                continue
            if step.skipped:
                yield Problem("UCP-E-LOG", place, "a step that was skipped has no gradients")
            if entry.form == "rows" and not piece.shape:
                yield Problem("UCP-E-LOG", pointer(place, "form"), "a tensor without dimensions has no rows")


def _count_problems(options: Options | None, epoch: Epoch, at: str) -> Iterator[Problem]:
    if options is not None and len(options) != len(epoch.groups):
        message = f"options of {len(options)} groups, and the epoch has {len(epoch.groups)}"
        yield Problem("UCP-E-LOG", pointer(at, "options"), message)


def _options(found: Mapping[str, JsonValue], at: str) -> Options | None:
    if "options" not in found:
        return None
    place = pointer(at, "options")
    items = array(found["options"], place)
    return tuple(object_(item, pointer(place, index)) for index, item in enumerate(items))


def _step(value: JsonValue, at: str) -> StepRecord:
    found = members(value, _STEP, _STEP_OPTIONAL, at)
    if "skipped" in found and found["skipped"] is not True:
        raise error("UCP-E-SCHEMA", "`skipped` is true, or not there", at=pointer(at, "skipped"))
    options = _options(found, at)
    entries_at = pointer(at, "entries")
    return StepRecord(
        tuple(
            _entry(item, entries_at, index) for index, item in enumerate(array(found["entries"], entries_at))
        ),
        integer(found["length"], pointer(at, "length")),
        integer(found["checksum"], pointer(at, "checksum"), most=(1 << 32) - 1),
        options,
        "skipped" in found,
    )


def _entry(value: JsonValue, entries_at: str, index: int) -> Entry:
    at = pointer(entries_at, index)
    counted = type(value) is dict and value.get("form") != "dense"
    found = members(value, _COUNTED if counted else _ENTRY, _NONE, at)
    form = cast("Form", choice(found["form"], _FORMS, pointer(at, "form")))
    count = integer(found["count"], pointer(at, "count")) if counted else None
    return Entry(integer(found["piece"], pointer(at, "piece")), form, count)


def _sum(value: JsonValue, at: str) -> Sum:
    found = members(value, frozenset({"tensor", "slot", "sum"}), _NONE, at)
    slot, text = string(found["slot"], pointer(at, "slot")), string(found["sum"], pointer(at, "sum"))
    if not slot:
        raise error("UCP-E-SCHEMA", "a slot has a name", at=pointer(at, "slot"))
    if _SUM.fullmatch(text) is None:
        raise error("UCP-E-SCHEMA", "a sum is 16 hexadecimal digits", at=pointer(at, "sum"))
    return Sum(integer(found["tensor"], pointer(at, "tensor")), slot, int(text, 16))


class Prefix(NamedTuple):
    """What stands before the header of a batch: its length in bytes, and its SHA-256 as a digest."""

    header_bytes: int
    digest: str


def framed(header: BatchHeader, payload: Sequence[memoryview]) -> tuple[list[memoryview], str]:
    """Return the bytes of a batch, and the digest that the next one names as ``previous``."""
    text = jsonio.dumps_canonical(header.to_json())
    digest = hashlib.sha256(text)
    head = _MAGIC + len(text).to_bytes(8, "little") + digest.digest() + text
    return [memoryview(head), *payload], f"sha256:{digest.hexdigest()}"


def read_prefix(data: bytes, *, at: str) -> Prefix | None:
    """Read the first `PREFIX_BYTES` of a batch; None where there are fewer, since it is torn.

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG`` where it does not begin as a batch does.
    """
    if not _MAGIC.startswith(data[: len(_MAGIC)]):
        raise error("UCP-E-LOG", "this is not a batch of an update log", at=at)
    if len(data) < PREFIX_BYTES:
        return None
    length = int.from_bytes(data[8:16], "little")
    return Prefix(length, f"sha256:{data[16:48].hex()}")


def parse_header(data: bytes, prefix: Prefix, *, at: str) -> BatchHeader:
    """Parse the header of a batch, whose bytes are ``data``.

    Raises:
        InvalidCheckpointError: ``UCP-E-LOG`` for another SHA-256; ``UCP-E-JSON``, ``UCP-E-LIMIT``, ``UCP-E-SCHEMA``.
    """
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != prefix.digest:
        raise error("UCP-E-LOG", "the header of the batch does not match its SHA-256", at=at)
    return BatchHeader.from_json(jsonio.loads(data, at=at), at=at)
