"""Which checkpoint the next one of a run shares its bytes with (SPEC section 8.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.storage.increments.base_contents import require_sharing, root_of_base
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    import os

    from ucpformat.manager.run_directory import RunDirectory
    from ucpformat.model.root import Storage

__all__ = ["INCREMENTS", "Increments"]

INCREMENTS: Final = "org.ucpformat.increments"
"""Annotation of an increment: how many there are since a checkpoint that shares nothing, itself included."""
_FULL_EVERY: Final = 50


class Increments:
    """Chooses the base of each checkpoint of a run; none without ``incremental``, and for each ``full_every``-th.

    Raises:
        UcpError: ``UCP-E-STORE`` for increments in a store that makes no copies; ``UCP-E-MISMATCH`` for a count without
            increments; ``UCP-E-LIMIT`` for one below 1.
    """

    def __init__(
        self, directory: str | os.PathLike[str], full_every: int | None, *, incremental: bool
    ) -> None:
        if full_every is not None and not incremental:
            message = "full_every= is about increments: give incremental=True as well"
            raise error("UCP-E-MISMATCH", message, at="full_every")
        if full_every is not None and full_every < 1:
            raise error(
                "UCP-E-LIMIT", f"a full checkpoint every {full_every}: give 1 or more", at="full_every"
            )
        if incremental:
            require_sharing(directory)
        self.are_wanted = incremental
        self._full_every = full_every or _FULL_EVERY

    def base(
        self, run: RunDirectory, storage: Storage, chunk_bytes: int
    ) -> tuple[str | None, dict[str, Any]]:
        """Return the newest checkpoint of the run, or None, and the annotation that says how many there are since."""
        latest = run.latest() if self.are_wanted else None
        if latest is None:
            return None, {}
        path = run.path(latest)
        wanted = None if chunk_bytes == DEFAULT_CHUNK_BYTES else chunk_bytes
        try:
            root = root_of_base(path, storage=storage, chunk_bytes=wanted)
        except UcpError:  # damaged, removed, or of another storage: a full one is never wrong
            return None, {}
        found = root.envelope.annotations.get(INCREMENTS, 0)
        number = (found if type(found) is int and found >= 0 else 0) + 1
        return (path, {INCREMENTS: number}) if number < self._full_every else (None, {})
