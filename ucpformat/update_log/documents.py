"""Log documents and epoch documents (SPEC-UPDATE-LOGS section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, cast

from ucpformat.errors import Problem, error
from ucpformat.geometry import Box, exact_cover
from ucpformat.jsonio import pointer
from ucpformat.model.atom import slot_problems
from ucpformat.model.envelope import Envelope
from ucpformat.model.fields import (
    array,
    below,
    choice,
    integer,
    integers,
    members,
    object_,
    raise_first,
    string,
)
from ucpformat.model.names import name_problems
from ucpformat.model.references import sha256_string
from ucpformat.model.root import log_id
from ucpformat.model.standalone import parse_standalone, standalone_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ucpformat.jsonio import JsonValue

__all__ = ["After", "Epoch", "Exactness", "LogDocument", "LogPiece", "LoggedTensor", "Role", "least_exact"]

Exactness = Literal["bitwise", "tolerance", "lossy"]
Role = Literal["gradient", "residual", "value"]

LOG_KIND: Final = "update-log"
EPOCH_KIND: Final = "update-log-epoch"
_MOST_RANKS: Final = 1 << 20
_EXACTNESS: Final[tuple[Exactness, ...]] = ("bitwise", "tolerance", "lossy")
_ROLES: Final = ("gradient", "residual", "value")
_NONE: Final[frozenset[str]] = frozenset()
_COVER: Final = {"gap": "elements missing", "overlap": "elements twice", "outside": "elements outside"}


def least_exact(found: Iterable[Exactness]) -> Exactness:
    """Return the least exact of some; ``bitwise`` of none."""
    return max(found, key=_EXACTNESS.index, default="bitwise")


@dataclass(frozen=True, slots=True)
class LogDocument:
    """What a log is named by."""

    id: str
    envelope: Envelope = field(default_factory=Envelope)

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> tuple[LogDocument, tuple[Problem, ...]]:
        """Read a structurally sound document, and say what is wrong with its content; raises the former."""
        faults: list[Problem] = []
        found = standalone_members(value, LOG_KIND, frozenset({"id"}), _NONE, faults, at=at)
        document = cls(log_id(found["id"], pointer(at, "id")), Envelope.from_json(value, at=at))
        return document, tuple(faults)

    @classmethod
    def parse(cls, data: bytes, *, at: str) -> LogDocument:
        """Parse the bytes of a log document; raises as SPEC UCP-R-022 says."""
        document, problems = cls.structure(parse_standalone(data, at=at), at=at)
        raise_first(problems)
        return document

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `structure` reads."""
        return {**self.envelope.to_json(), "kind": LOG_KIND, "id": self.id}


@dataclass(frozen=True, slots=True)
class LoggedTensor:
    """A tensor that steps change, and its role: what is logged of it, in ``dtype``."""

    atom: str
    role: Role
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def _read(cls, value: JsonValue, at: str) -> LoggedTensor:
        found = members(value, frozenset({"atom", "role", "dtype", "shape"}), _NONE, at)
        return cls(
            string(found["atom"], pointer(at, "atom")),
            cast("Role", choice(found["role"], _ROLES, pointer(at, "role"))),
            string(found["dtype"], pointer(at, "dtype")),
            integers(found["shape"], pointer(at, "shape")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object of the tensor."""
        return {"atom": self.atom, "role": self.role, "dtype": self.dtype, "shape": list(self.shape)}


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A box of a tensor that a rank logs."""

    tensor: int
    rank: int
    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def _read(cls, value: JsonValue, at: str) -> LogPiece:
        found = members(value, frozenset({"tensor", "rank", "offset", "shape"}), _NONE, at)
        return cls(
            integer(found["tensor"], pointer(at, "tensor")),
            integer(found["rank"], pointer(at, "rank")),
            integers(found["offset"], pointer(at, "offset")),
            integers(found["shape"], pointer(at, "shape")),
        )

    @property
    def box(self) -> Box:
        """The box."""
        return Box(self.offset, self.shape)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object of the piece."""
        return {
            "tensor": self.tensor,
            "rank": self.rank,
            "offset": list(self.offset),
            "shape": list(self.shape),
        }

    def fault(self, shape: tuple[int, ...]) -> str | None:
        """Return why this is no box within a tensor of this shape, or None."""
        if not len(self.offset) == len(self.shape) == len(shape):
            return f"the box has not as many dimensions as {list(shape)}"
        if 0 in self.shape:
            return "the box has no element"
        ends = map(sum, zip(self.offset, self.shape, strict=True))
        return None if all(map(int.__le__, ends, shape)) else f"the box is not within {list(shape)}"


@dataclass(frozen=True, slots=True)
class After:
    """The epoch that another goes on from, with the digest of its document."""

    epoch: int
    digest: str


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of steps of a log, begun by a start of the job, which draws ``start`` at random.

    ``profile`` has what decides the bits of a step beside what the log has.
    """

    log: str
    epoch: int
    start: str
    first_step: int
    after: After | None
    ranks: int
    tensors: tuple[LoggedTensor, ...]
    pieces: tuple[LogPiece, ...]
    groups: tuple[tuple[int, ...], ...]
    optimizer: str
    profile: Mapping[str, str]
    exactness: Exactness
    envelope: Envelope = field(default_factory=Envelope)

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> tuple[Epoch, tuple[Problem, ...]]:
        """Read a structurally sound document, and say what is wrong with its content; raises the former."""
        faults: list[Problem] = []
        names = {"log", "epoch", "start", "first_step", "after", "ranks", "tensors", "pieces", "groups"}
        needed = frozenset(names | {"optimizer", "exactness"})
        found = standalone_members(value, EPOCH_KIND, needed, _NONE, faults, at=at)
        optimizer = members(
            found["optimizer"], frozenset({"type", "profile"}), _NONE, pointer(at, "optimizer")
        )
        profile_at = pointer(at, "optimizer", "profile")
        kind = string(optimizer["type"], pointer(at, "optimizer", "type"))
        if not kind:
            raise error("UCP-E-SCHEMA", "an optimizer has a type", at=pointer(at, "optimizer", "type"))
        epoch = cls(
            log_id(found["log"], pointer(at, "log")),
            integer(found["epoch"], pointer(at, "epoch")),
            log_id(found["start"], pointer(at, "start")),
            integer(found["first_step"], pointer(at, "first_step")),
            _after(found["after"], pointer(at, "after")),
            integer(found["ranks"], pointer(at, "ranks"), least=1, most=_MOST_RANKS),
            tuple(
                LoggedTensor._read(item, pointer(at, "tensors", index))
                for index, item in enumerate(array(found["tensors"], pointer(at, "tensors")))
            ),
            tuple(
                LogPiece._read(item, pointer(at, "pieces", index))
                for index, item in enumerate(array(found["pieces"], pointer(at, "pieces")))
            ),
            tuple(
                integers(item, pointer(at, "groups", index))
                for index, item in enumerate(array(found["groups"], pointer(at, "groups")))
            ),
            kind,
            {
                name: string(text, pointer(profile_at, name))
                for name, text in object_(optimizer["profile"], profile_at).items()
            },
            cast("Exactness", choice(found["exactness"], _EXACTNESS, pointer(at, "exactness"))),
            Envelope.from_json(value, at=at),
        )
        return epoch, (*faults, *epoch.problems(at))

    @classmethod
    def parse(cls, data: bytes, *, at: str) -> Epoch:
        """Parse the bytes of an epoch document, and check its content.

        Raises:
            UcpError: as SPEC UCP-R-022 says, then ``UCP-E-NAME``, ``UCP-E-DTYPE`` or ``UCP-E-LOG``.
        """
        epoch, problems = cls.structure(parse_standalone(data, at=at), at=at)
        raise_first(problems)
        return epoch

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `structure` reads."""
        after: JsonValue = None
        if self.after is not None:
            after = {"epoch": self.after.epoch, "digest": self.after.digest}
        return {
            **self.envelope.to_json(),
            "kind": EPOCH_KIND,
            "log": self.log,
            "epoch": self.epoch,
            "start": self.start,
            "first_step": self.first_step,
            "after": after,
            "ranks": self.ranks,
            "tensors": [tensor.to_json() for tensor in self.tensors],
            "pieces": [piece.to_json() for piece in self.pieces],
            "groups": [list(group) for group in self.groups],
            "optimizer": {"type": self.optimizer, "profile": dict(self.profile)},
            "exactness": self.exactness,
        }

    def pieces_of(self, rank: int) -> list[int]:
        """Return the numbers of the pieces that a rank logs, ascending."""
        return [number for number, piece in enumerate(self.pieces) if piece.rank == rank]

    def pieces_by_tensor(self) -> list[list[int]]:
        """Return the numbers of the pieces of each tensor, ascending."""
        found: list[list[int]] = [[] for _ in self.tensors]
        for number, piece in enumerate(self.pieces):
            found[piece.tensor].append(number)
        return found

    def problems(self, at: str) -> Iterator[Problem]:
        """Yield what is wrong with the content (SPEC UCP-D-153 to UCP-D-156)."""
        if (self.after is None) != (self.epoch == 0):
            yield Problem("UCP-E-LOG", pointer(at, "after"), "only the first epoch goes on from none")
        elif self.after is not None and self.after.epoch >= self.epoch:
            yield Problem("UCP-E-LOG", pointer(at, "after", "epoch"), "an epoch goes on from an earlier one")
        yield from self._tensor_problems(at)
        yield from self._piece_problems(at)
        yield from self._group_problems(at)

    def _tensor_problems(self, at: str) -> Iterator[Problem]:
        seen: set[str] = set()
        for number, tensor in enumerate(self.tensors):
            place = pointer(at, "tensors", number)
            yield from name_problems(tensor.atom, pointer(place, "atom"))
            if tensor.atom in seen:
                yield Problem("UCP-E-NAME", pointer(place, "atom"), f"{tensor.atom!r} is there already")
            seen.add(tensor.atom)
            yield from below(slot_problems("value", tensor.dtype, tensor.shape), place)

    def _piece_problems(self, at: str) -> Iterator[Problem]:
        boxes: dict[int, list[Box] | None] = {number: [] for number in range(len(self.tensors))}
        for number, piece in enumerate(self.pieces):
            place = pointer(at, "pieces", number)
            if piece.rank >= self.ranks:
                message = f"rank {piece.rank} is not one of {self.ranks}"
                yield Problem("UCP-E-LOG", pointer(place, "rank"), message)
            if piece.tensor >= len(self.tensors):
                yield Problem("UCP-E-LOG", pointer(place, "tensor"), f"there is no tensor {piece.tensor}")
                continue
            fault = piece.fault(self.tensors[piece.tensor].shape)
            known = boxes[piece.tensor]
            if fault is not None:
                yield Problem("UCP-E-LOG", place, fault)
                boxes[piece.tensor] = None
            elif known is not None:
                known.append(piece.box)
        for number, found in boxes.items():
            fault_of_all = None if found is None else exact_cover(found, self.tensors[number].shape)
            if fault_of_all is not None:
                message = f"its pieces have {_COVER[fault_of_all.kind]}: {fault_of_all.box}"
                yield Problem("UCP-E-LOG", pointer(at, "tensors", number), message)

    def _group_problems(self, at: str) -> Iterator[Problem]:
        seen: set[int] = set()
        for number, group in enumerate(self.groups):
            for index, tensor in enumerate(group):
                place = pointer(at, "groups", number, index)
                if tensor >= len(self.tensors) or self.tensors[tensor].role != "gradient":
                    yield Problem("UCP-E-LOG", place, f"{tensor} is no tensor that has gradients")
                elif tensor in seen:
                    yield Problem("UCP-E-LOG", place, f"tensor {tensor} is in a group already")
                seen.add(tensor)
        for number, one in enumerate(self.tensors):
            if one.role == "gradient" and number not in seen:
                yield Problem("UCP-E-LOG", pointer(at, "tensors", number), "it is in no group")


def _after(value: JsonValue, at: str) -> After | None:
    if value is None:
        return None
    found = members(value, frozenset({"epoch", "digest"}), _NONE, at)
    digest = sha256_string(found["digest"], pointer(at, "digest"))
    return After(integer(found["epoch"], pointer(at, "epoch")), digest)
