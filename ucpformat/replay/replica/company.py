"""The replicas of all ranks of a job: how they find one another, and agree upon steps without waiting inside a call."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ucpformat.distributed.group import OneProcess
from ucpformat.errors import UcpError, error
from ucpformat.replay.replica.spans import Span
from ucpformat.replay.replica.ties import Ties
from ucpformat.replay.replica.wire import PATIENCE
from ucpformat.state_dict.torch_group import TorchGroup

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from ucpformat.distributed.group import Group
    from ucpformat.replay.replica.ties import Meeting

__all__ = ["Company", "alone", "joined"]

_LOOK: Final = 0.02
_HEAR: Final = 1.0
_WAIT: Final = timedelta(seconds=PATIENCE)


class Company:
    """All replicas of a job: a group for saves, and a store of notes. Notes are written once, and nobody waits.

    Raises:
        StoreError: ``UCP-E-RANK``, from any method, where the store is gone with the replica that has it.
    """

    def __init__(self, group: Group, store: Any, ties: Ties | None = None) -> None:
        self.group = group
        self.ranks = len(group.ranks)
        self._store = store
        self._ties = ties

    def tell(self, name: str, span: Span) -> None:
        """Write what this replica has under a name that all replicas use."""
        with _talking():
            if self._store is not None:
                self._store.set(f"{name}/{self.group.rank}", json.dumps(span))

    def told(self, name: str) -> list[Span] | None:
        """Return what all replicas have written under a name, None as long as one has not."""
        if self._store is None:
            return None
        names = [f"{name}/{rank}" for rank in range(self.ranks)]
        with _talking():
            if not self._store.check(names):
                return None
            return [Span(*json.loads(self._store.get(one))) for one in names]

    def leave(self, patience: float) -> None:
        """Say that this replica ends; that of the first rank, which has the store, waits for the others to say so."""
        if self._store is None:
            return
        with suppress(UcpError):
            self.tell("left", Span(0, 0))
            limit = time.monotonic() + patience
            while self.group.rank == 0 and self.told("left") is None and time.monotonic() < limit:
                time.sleep(_LOOK)
        if self._ties is not None:
            self._ties.leave()

    def is_broken_by(self, problem: UcpError) -> bool:
        """Return whether a save has failed since no other can be made with the replicas of all ranks."""
        if self.ranks == 1 or problem.code != "UCP-E-RANK":
            return False
        # What torch raises of a process that is gone; else another rank had something to say, or its process has ended,
        # of which this one hears in a moment, and ends.
        time.sleep(0 if isinstance(problem.__cause__, RuntimeError) else _HEAR)
        return isinstance(problem.__cause__, RuntimeError)


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as reason:
        message = "the replica of another rank is gone, and no checkpoint can be saved with it"
        raise error("UCP-E-RANK", f"{message}: {str(reason).partition(chr(10))[0]}", at="replica") from reason


def alone() -> Company:
    """Return the company of a replica that is the only one of its job."""
    return Company(OneProcess(), None)


def joined(
    meeting: Meeting, rank: int, ranks: int, inherited: Sequence[socket.socket], broken: Callable[[], None]
) -> Company:
    """Join the replicas of a job, by the sockets that `opened` or `tied` has given. Returns when all have joined.

    ``broken`` is called in another thread when one of them is gone, also before that.

    Raises:
        StoreError: ``UCP-E-RANK`` where not all come.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    secret = bytes.fromhex(meeting.secret)
    is_first = rank == 0
    if is_first:
        ties = Ties(listener=inherited[1], secret=secret, broken=broken)
    else:
        ties = Ties(tie=inherited[0], broken=broken)
    with _talking():
        store = TCPStore(
            meeting.host,
            meeting.port,
            ranks,
            is_master=is_first,
            timeout=_WAIT,
            wait_for_workers=False,
            master_listen_fd=inherited[0].detach() if is_first else None,
            use_libuv=True,
        )
        dist.init_process_group(
            "gloo", store=PrefixStore("gloo", store), rank=rank, world_size=ranks, timeout=_WAIT
        )
    return Company(TorchGroup(), PrefixStore("notes", store), ties)
