"""A directory that one writer holds, locked, and clears of what an attempt before it left (SPEC section 8)."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ucpformat.errors import error
from ucpformat.model.root import ROOT_KEY
from ucpformat.storage.store import PREFIXES

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["STAGED", "DirectoryClaim", "is_staged"]

STAGED: Final = f".{ROOT_KEY}."
"""How the name of a file begins that is not yet the object that it becomes, or never became one."""


def is_staged(key: str) -> bool:
    """Whether this is such a file: nobody reads it, and whoever is alone here may remove it."""
    return key.startswith(STAGED) and "/" not in key


class DirectoryClaim:
    """The hold of one store on the directory of a checkpoint; none at first.

    Its methods raise `UcpError`: ``UCP-E-EXISTS`` where somebody or something else is there; and OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held = -1

    def join(self) -> None:
        """Hold on to the directory that another process has made, without its lock."""
        self.release()
        self._held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def hold(self) -> None:
        """Lock the directory until `release`, so that nobody takes a writer that is alive for debris."""
        self.release()
        if not self._root.is_dir():
            raise error("UCP-E-EXISTS", "the destination is a file; choose another path", at=str(self._root))
        self._held = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise error(
                "UCP-E-EXISTS", "another writer is at work here; choose another path", at=str(self._root)
            ) from None
        except OSError:
            pass  # a medium without locks
        self.require_mine()

    def require_mine(self) -> None:
        """Where locks do not work, somebody may have moved the directory away, and have begun another one."""
        if not self.is_mine():
            raise error("UCP-E-EXISTS", "another writer has taken this place over", at=str(self._root))

    def is_mine(self) -> bool:
        """Whether the directory is still the one that is held, if any is."""
        try:
            return self._held < 0 or os.path.samestat(os.fstat(self._held), self._root.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go."""
        if self._held >= 0:
            held, self._held = self._held, -1
            # Processes that were forked meanwhile share the lock: closing alone would leave it to them.
            with suppress(OSError):
                fcntl.flock(held, fcntl.LOCK_UN)
            os.close(held)

    def require_no_other(self) -> list[str]:
        """What lies in the directory, which is no checkpoint and nothing foreign."""
        names = [entry.name for entry in self._root.iterdir()]
        if ROOT_KEY in names:
            raise error(
                "UCP-E-EXISTS",
                "a committed checkpoint is there and is never overwritten; choose another path or remove it",
                at=str(self._root),
            )
        rooms = {prefix.rstrip("/") for prefix in PREFIXES}
        foreign = [name for name in names if name not in rooms and not is_staged(name)]
        if foreign:
            raise error(
                "UCP-E-EXISTS",
                f"the directory holds {foreign[0]!r}, which is no part of a checkpoint; choose an empty one",
                at=str(self._root),
            )
        return names

    def clear_debris(self) -> None:
        """Move aside and remove what an attempt that failed has left, and hold the directory made anew."""
        if not self.require_no_other():
            return
        # Moving first leaves a writer that comes back from the dead in a directory of its own.
        root = self._root.resolve()
        aside = root.with_name(f"{root.name}.debris-{uuid.uuid4().hex[:8]}")
        root.rename(aside)
        root.mkdir()
        self.hold()
        shutil.rmtree(aside, ignore_errors=True)
