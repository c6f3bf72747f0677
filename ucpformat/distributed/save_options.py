"""How to save together, and what came of it (SPEC section 17.4)."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, get_args

from ucpformat.errors import error, require_one_of
from ucpformat.html_facts import html_facts
from ucpformat.model.root import Storage
from ucpformat.storage.increments.base_contents import root_of_base
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ucpformat.jsonio import JsonValue
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.root import LogPosition
    from ucpformat.storage.stores.store import Durability, Store
    from ucpformat.storage.writing.stored_columns import StoredBytes

__all__ = ["Replicas", "SaveOptions", "SaveReport", "step_number"]

Replicas = Literal["compare", "check", "trust"]
"""What is done about copies of plain tensors: the first rank's where they differ, an error, or nothing."""


def step_number(step: object) -> int:
    """Return a step as an integer; numpy's and torch's integers are taken as well.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for anything else, and for negative ones.
    """
    try:
        number = operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0 or isinstance(step, bool):
        raise error("UCP-E-MISMATCH", f"a step is an integer from 0 on, not {step!r}", at="step")
    return number


@dataclass(frozen=True, slots=True)
class SaveOptions:
    """How to save; the same on all ranks but for ``workers``.

    ``annotations`` are those of the root document. ``replicas`` says what is done about copies of plain tensors that
    differ from rank to rank: the first rank's are saved (``compare``), it is an error (``check``), or nothing is looked
    at (``trust``). What the checkpoint at ``base`` has is shared with it (`ucpformat.storage.increments.base`).
    ``pipeline`` says what is in flight, ``log`` which update log goes on from the state.
    ``base_digest`` is the root digest of the base (`based`). ``before_commit`` is called on each rank when its share is
    written; what it raises makes the save fail.
    """

    storage: Storage = "packed"
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    step: int | None = None
    log: LogPosition | None = None
    workers: int | None = None
    durability: Durability = "fsync"
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)
    replicas: Replicas = "compare"
    base: str | None = None
    pipeline: Pipeline | None = None
    base_digest: str | None = None
    before_commit: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.step is not None:
            object.__setattr__(self, "step", step_number(self.step))

    def based(self, base: str, target: Store) -> SaveOptions:
        """Return the options with the chunk size and the root digest of a base of what is saved to ``target``.

        Raises:
            UcpError: as `root_of_base`.
        """
        wanted = None if self.chunk_bytes == DEFAULT_CHUNK_BYTES else self.chunk_bytes
        root = root_of_base(base, storage=self.storage, chunk_bytes=wanted, target=target)
        return replace(self, chunk_bytes=root.chunk_bytes, base_digest=root.digest)

    def to_json(self) -> dict[str, JsonValue]:
        """Return what all ranks have to give alike."""
        return {
            "storage": self.storage,
            "chunk_bytes": self.chunk_bytes,
            "step": self.step,
            "log": None if self.log is None else self.log.to_json(),
            "annotations": dict(self.annotations),
            "replicas": self.replicas,
            "base": self.base_digest,
            "pipeline": None if self.pipeline is None else self.pipeline.to_json(),
        }

    def require_known(self) -> None:
        """Refuse options that are not among those that there are, by ``UCP-E-MISMATCH``."""
        require_one_of("storage=", self.storage, get_args(Storage))
        require_one_of("replicas=", self.replicas, get_args(Replicas))
        if not isinstance(self.annotations, Mapping):
            raise error("UCP-E-MISMATCH", f"annotations= is a dict, not {self.annotations!r}")
        try:
            json.dumps(dict(self.annotations))
        except (TypeError, ValueError) as problem:
            raise error("UCP-E-OBJECT", f"annotations are JSON: {problem}", at="annotations") from None


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What a save wrote, and how long it took.

    Attributes:
        digest: the root digest of the checkpoint, ``sha256:`` and 64 digits; empty where nothing was saved.
        nbytes: logical bytes that this rank wrote.
        sent: bytes that this rank sent to other ranks.
        stored: bytes that the whole checkpoint takes: of data, of alignment and of documents. The same on all ranks.
        seconds: from the call until the checkpoint was committed.
        stalled: seconds for which the call kept its caller.
        waited: seconds of these for which the call waited for the previous save.
        staging: seconds of these for which it copied tensors into host memory.
        fenced: seconds for which training waited behind the call, before it changed what was not copied yet.
        writing: seconds for which a save in the background wrote.
        arena_bytes: bytes of host memory for the copies: the most that saves of this saver ever needed.

    >>> report = ucp.save("run.ucp", {"w": np.ones(4, np.float32)})
    >>> report.nbytes, report.stored.data, report.skipped
    (16, 16, False)
    """

    digest: str
    nbytes: int
    sent: int
    stored: StoredBytes
    seconds: float
    stalled: float
    waited: float = 0.0
    staging: float = 0.0
    fenced: float = 0.0
    writing: float = 0.0
    arena_bytes: int = 0

    def _repr_html_(self) -> str:
        rows = [(entry.name, getattr(self, entry.name)) for entry in fields(self)]
        return html_facts({"save": self.digest or "skipped"}, ("", ""), rows[1:])

    @property
    def skipped(self) -> bool:
        """Whether nothing was saved, because the previous save was still under way.

        >>> save = ucp.async_save("step-1.ucp", {"w": np.ones(4, np.float32)}, when_busy="skip")
        >>> save.wait().skipped
        False
        """
        return not self.digest
