"""`Replica`: what a user says of the process that holds a job's state a second time."""

from __future__ import annotations

from dataclasses import dataclass

from ucpformat.errors import error

__all__ = ["Replica"]


@dataclass(frozen=True, slots=True)
class Replica:
    """Options of a replica, for `UpdateLog`: a process that has the state of a job in host memory, and outlives it.

    Attributes:
        linger: seconds for which it waits for `recover` when the trainer is gone, before it ends; its last checkpoint
            is written at once.
        incremental: whether its checkpoints share unchanged tensors with the one before.
        threads: how many threads its optimizer uses.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for values that none of these can have.

    >>> ucp.Replica(linger=60.0)
    Replica(linger=60.0, incremental=False, threads=1)
    """

    linger: float = 600.0
    incremental: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        if not self.linger >= 0:
            raise error("UCP-E-MISMATCH", f"a number of seconds, not {self.linger!r}", at="linger")
        if not (isinstance(self.threads, int) and self.threads > 0):
            raise error("UCP-E-MISMATCH", f"a number of threads, not {self.threads!r}", at="threads")
