"""The error registry (SPEC section 18): every refusal has a code, a place and a remedy."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import os
    from collections.abc import Collection
    from types import TracebackType

__all__ = [
    "REGISTRY",
    "ImportRefusedError",
    "IntegrityError",
    "InvalidCheckpointError",
    "LayoutError",
    "MismatchError",
    "Problem",
    "StoreError",
    "UcpError",
    "UnsupportedError",
    "error",
    "naming",
    "require_one_of",
]

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of the validator: data, not an exception.

    ``at`` is a place: a store key, ``#``, and an RFC 6901 JSON pointer into that document
    (``ucp.json#/layouts/0/mesh``); the part after ``#`` is left out where the whole object is meant.

    >>> ucp.Problem("UCP-E-CHECKSUM", "packs/0.pack", "block 3 has another checksum").severity
    'error'
    """

    code: str
    at: str
    message: str

    @property
    def severity(self) -> Severity:
        """``warning`` for codes that start with ``UCP-W-``, else ``error``.

        >>> ucp.Problem("UCP-W-UNREFERENCED", "packs/0.pack", "debris").severity
        'warning'
        """
        return "warning" if self.code.startswith("UCP-W-") else "error"

    def to_json(self) -> dict[str, str]:
        """Return the object that ``ucp validate --format json`` prints.

        >>> ucp.Problem("UCP-E-MISSING", "packs/0.pack", "it is gone").to_json()["at"]
        'packs/0.pack'
        """
        return {"code": self.code, "at": self.at, "severity": self.severity, "message": self.message}


class UcpError(Exception):
    """Base of every error this library raises on purpose.

    ``code`` is a registry code, ``at`` the place (see `Problem`), ``message`` says what is wrong and what to do.
    ``path`` is the checkpoint, directory or file that was worked on, as the user named it, where that is known
    (`naming`).

    >>> try:
    ...     ckpt = ucp.open("nothing.ucp")
    ... except ucp.UcpError as problem:
    ...     print(problem.code)
    UCP-E-NOT-FOUND
    """

    def __init__(self, code: str, message: str, *, at: str = "", path: str = "") -> None:
        if code not in REGISTRY:
            raise AssertionError(f"{code} is not in the error registry")
        self.code = code
        self.at = at
        self.message = message
        self.path = path
        super().__init__(code, message, at)

    def __str__(self) -> str:
        return f"{self.code}{self.where}: {self.message}"

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the way back from a worker process with code, place and path intact."""
        return (_rebuild, (type(self), self.code, self.message, self.at, self.path))

    @property
    def where(self) -> str:
        """`` in PATH at PLACE``, with what of both is known and says more than the other.

        >>> ucp.StoreError("UCP-E-STORE", "the disk is full", at="packs/0.pack", path="run.ucp").where
        ' in run.ucp at packs/0.pack'
        """
        at, path = self.at, self.path.rstrip("/")
        names_it = at == path or at.startswith((f"{path}/", f"{path}#")) or at.endswith(f"/{path}")
        where = f" in {path}" if path and not names_it else ""
        return f"{where} at {at}" if at else where

    def problem(self) -> Problem:
        """Return the same finding as data.

        >>> ucp.StoreError("UCP-E-STORE", "the disk is full", at="packs/0.pack").problem().code
        'UCP-E-STORE'
        """
        return Problem(self.code, self.at, self.message)


def _rebuild(kind: type[UcpError], code: str, message: str, at: str, path: str) -> UcpError:
    return kind(code, message, at=at, path=path)


class naming(AbstractContextManager["naming"]):  # noqa: N801 - used as a function, and a class because it surrounds every read
    """Give ``path`` to the errors that are raised within, unless they have one: the innermost knows best."""

    __slots__ = ("_path",)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(value, UcpError) and not value.path:
            value.path = str(self._path)


class InvalidCheckpointError(UcpError):
    """A document or table breaks the specification.

    >>> from pathlib import Path
    >>> report = ucp.save("run.ucp", {"epoch": 3})
    >>> Path("run.ucp/ucp.json").write_text("{")
    1
    >>> try:
    ...     ckpt = ucp.open("run.ucp")
    ... except ucp.InvalidCheckpointError as problem:
    ...     print(problem.code)
    UCP-E-JSON
    """


class UnsupportedError(UcpError):
    """The checkpoint may be good, but this reader must refuse it: version, feature, extension, data type.

    >>> try:
    ...     report = ucp.save("run.ucp", {"when": np.array(["2026-01-01"], "datetime64[D]")})
    ... except ucp.UnsupportedError as problem:
    ...     print(problem.code)
    UCP-E-DTYPE
    """


class IntegrityError(UcpError):
    """Bytes are missing, changed or in the wrong place.

    >>> from pathlib import Path
    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> next(Path("run.ucp/packs").iterdir()).unlink()
    >>> try:
    ...     state = ucp.load("run.ucp")
    ... except ucp.IntegrityError as problem:
    ...     print(problem.code)
    UCP-E-MISSING
    """


class StoreError(UcpError):
    """The store refused an operation, or holds what a checkpoint must not contain.

    >>> try:
    ...     report = ucp.save("https://example.org/run.ucp", {"epoch": 3})
    ... except ucp.StoreError as problem:
    ...     print(problem.code)
    UCP-E-STORE
    """


class LayoutError(UcpError):
    """A mesh or layout cannot be lowered, or two layouts do not fit.

    >>> try:
    ...     layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("dp", 0),))
    ... except ucp.LayoutError as problem:
    ...     print(problem.code)
    UCP-E-LAYOUT
    """


class MismatchError(UcpError):
    """What was asked for and what the checkpoint holds differ: names, shapes, data types.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4)})
    >>> try:
    ...     state = ucp.load("run.ucp", {"w": np.ones(5)})
    ... except ucp.MismatchError as problem:
    ...     print(problem.code)
    UCP-E-MISMATCH
    """


class ImportRefusedError(UcpError):
    """A foreign checkpoint cannot be read safely and completely.

    >>> from pathlib import Path
    >>> Path("notes.pt").write_text("no checkpoint")
    13
    >>> try:
    ...     report = ucp.convert("notes.pt", "run.ucp")
    ... except ucp.ImportRefusedError as problem:
    ...     print(problem.code)
    UCP-E-SOURCE
    """


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: type[UcpError]
    title: str


# In order of precedence: where several apply, `open` raises the first (SPEC 18).
REGISTRY: Final[dict[str, _Entry]] = {
    "UCP-E-NOT-FOUND": _Entry(StoreError, "there is no root document: not a checkpoint, or not committed"),
    "UCP-E-LINK": _Entry(StoreError, "a symbolic link or special file lies where a plain file must be"),
    "UCP-E-STORE": _Entry(StoreError, "the store failed"),
    "UCP-E-LIMIT": _Entry(InvalidCheckpointError, "a limit of the specification is exceeded"),
    "UCP-E-JSON": _Entry(InvalidCheckpointError, "a document is not strict JSON"),
    "UCP-E-FORMAT": _Entry(InvalidCheckpointError, "the envelope is not that of this format"),
    "UCP-E-VERSION": _Entry(UnsupportedError, "the format version is not supported"),
    "UCP-E-DIGEST": _Entry(IntegrityError, "a document does not match its recorded digest"),
    "UCP-E-FEATURE": _Entry(UnsupportedError, "a required feature is not supported"),
    "UCP-E-EXTENSION": _Entry(UnsupportedError, "an extension that must be understood is not supported"),
    "UCP-E-SCHEMA": _Entry(InvalidCheckpointError, "a document breaks its schema"),
    "UCP-E-KEY": _Entry(InvalidCheckpointError, "a store key is unsafe or not unique"),
    "UCP-E-NAME": _Entry(InvalidCheckpointError, "names are duplicated, unsorted or ambiguous"),
    "UCP-E-REFERENCE": _Entry(InvalidCheckpointError, "a reference points at nothing"),
    "UCP-E-FEATURE-SET": _Entry(
        InvalidCheckpointError, "declared features differ from those the content needs"
    ),
    "UCP-E-DTYPE": _Entry(UnsupportedError, "the data type is not supported"),
    "UCP-E-SHAPE": _Entry(InvalidCheckpointError, "a shape is impossible or too large"),
    "UCP-E-LAYOUT": _Entry(LayoutError, "a mesh or layout is malformed"),
    "UCP-E-COVER": _Entry(LayoutError, "local tensors that are to be written leave elements out"),
    "UCP-E-PATTERN": _Entry(LayoutError, "a pattern or an atom map is malformed or cannot be applied"),
    "UCP-E-VALUE": _Entry(InvalidCheckpointError, "a tagged value is malformed"),
    "UCP-E-TABLE": _Entry(InvalidCheckpointError, "a chunk table is malformed"),
    "UCP-E-SEGMENT": _Entry(
        InvalidCheckpointError, "segments leave their container, overlap or do not tile a chunk"
    ),
    "UCP-E-ZARR": _Entry(InvalidCheckpointError, "Zarr metadata differ from the derived document"),
    "UCP-E-MISSING": _Entry(IntegrityError, "an object that the root reaches is missing"),
    "UCP-E-LENGTH": _Entry(IntegrityError, "an object has another length than recorded"),
    "UCP-E-CHECKSUM": _Entry(IntegrityError, "stored bytes do not match their checksum"),
    "UCP-E-CODEC": _Entry(IntegrityError, "a chunk does not decode to its size"),
    "UCP-E-PADDING": _Entry(IntegrityError, "bytes that must be zero are not"),
    "UCP-E-CONTENT": _Entry(IntegrityError, "logical bytes do not match the slot's content digest"),
    "UCP-E-EXISTS": _Entry(StoreError, "the destination exists and is never overwritten in place"),
    "UCP-E-MISMATCH": _Entry(MismatchError, "what was asked for differs from what the checkpoint holds"),
    "UCP-E-UNMATCHED": _Entry(MismatchError, "no rule of a pattern document or an atom map matches a name"),
    "UCP-E-INEXACT": _Entry(MismatchError, "a value cannot be given or stored without rounding"),
    "UCP-E-SOURCE": _Entry(
        ImportRefusedError, "a foreign checkpoint is damaged, incomplete or of an unknown format"
    ),
    "UCP-E-PICKLE": _Entry(ImportRefusedError, "a pickle asks for code that is not on the allow-list"),
    "UCP-E-OBJECT": _Entry(ImportRefusedError, "an object cannot be expressed as a tagged value"),
    "UCP-E-LOG": _Entry(
        InvalidCheckpointError, "an update log contradicts itself, or what is replayed from it"
    ),
    "UCP-E-FENCED": _Entry(StoreError, "another start of the job has gone on from the update log"),
    "UCP-E-RANK": _Entry(StoreError, "another process of the job failed, or is gone"),
    "UCP-W-UNCHECKED": _Entry(InvalidCheckpointError, "what would take too long to check was not checked"),
    "UCP-W-UNREFERENCED": _Entry(StoreError, "an object lies in the store that the root does not reach"),
}


def error(code: str, message: str, *, at: str = "") -> UcpError:
    """Return the registered exception for ``code``, ready to be raised."""
    return REGISTRY[code].kind(code, message, at=at)


def require_one_of(what: str, value: object, known: Collection[str]) -> None:
    """Raise ``UCP-E-MISMATCH`` for the value of an option, ``what``, that is not among those that are known."""
    if value not in known:
        raise error("UCP-E-MISMATCH", f"{what} is one of {', '.join(known)}, not {value!r}")
