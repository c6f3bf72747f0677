"""One tensor of an exchange on this rank: where its parts come from and go to, and what arithmetic they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.distributed.transport import strided_view
from ucpformat.errors import error
from ucpformat.geometry import Copy, RankPlan
from ucpformat.storage.arithmetic import reduced, scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import ArraySource
    from ucpformat.geometry import Reduce
    from ucpformat.model.dtype import DType

__all__ = ["TensorParcel"]

_OpenClose = tuple[Callable[[], "NDArray[np.generic]"], Callable[[], None]]


class TensorParcel:
    """A `transport.Parcel` over the memories of the local tensors of both sides, which do not overlap.

    ``source`` gives the one, ``target`` opens the other, dense and of the type ``kind``, and closes it; each is left
    out where this rank has none. Contributions, where ``reduce`` is not None, are reduced when all are there, and
    results multiplied by ``2**exponent``, only where this tensor lies. What fails is kept for `finish`.
    """

    def __init__(
        self,
        plan: RankPlan,
        kind: DType,
        source: ArraySource | None,
        target: _OpenClose | None,
        *,
        reduce: Reduce | None = None,
        exponent: int = 0,
        at: str = "",
    ) -> None:
        self._plan = plan
        self._kind = kind
        self._raw = np.dtype(f"V{kind.item_bytes}")
        self._give = source
        self._target = target
        self._reduce = reduce
        self._exponent = exponent
        self._at = at
        self._failure: Exception | None = None
        self._given: NDArray[np.void] | None = None
        self._taken: list[NDArray[np.void]] = []
        self._filled: NDArray[np.generic] | None = None

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return self._kind.item_bytes

    @property
    def sends(self) -> Sequence[Copy]:
        """What other ranks get."""
        return self._plan.sends

    @property
    def receives(self) -> Sequence[Copy]:
        """What other ranks give."""
        return self._plan.receives

    def keep(self) -> int:
        """Make the copies within this rank; returns their bytes."""
        if self._target is not None:
            self._into()
        for copy in self._plan.keeps:
            self.incoming(copy)[...] = self.outgoing(copy)
        return self._plan.elements_kept * self.item_bytes

    def outgoing(self, copy: Copy) -> NDArray[np.void]:
        """Return the elements of a part of a copy; zeros after a failure."""
        memory = self._from()
        if memory is None:
            return np.zeros(copy.shape, self._raw)
        return strided_view(memory, copy.shape, copy.source)

    def incoming(self, copy: Copy) -> NDArray[np.void]:
        """Return where the elements of a part of a copy go; nowhere that matters after a failure."""
        memories = self._into()
        if not memories:
            return np.empty(copy.shape, self._raw)
        return strided_view(memories[copy.contribution], copy.shape, copy.target)

    def finish(self) -> Exception | None:
        """Do the arithmetic, close the target and let go of memory; returns what failed, now or earlier."""
        try:
            if self._failure is None and self._filled is not None and self._target is not None:
                self._compute(self._filled.reshape(-1))
                self._target[1]()
        except Exception as failure:
            self._failure = failure
        self._given, self._taken, self._filled = None, [], None
        return self._failure

    def _from(self) -> NDArray[np.void] | None:
        if self._given is None and self._failure is None and self._give is not None:
            try:
                memory = np.ascontiguousarray(self._give()).reshape(-1).view(self._raw)
                self._check(
                    memory.size, [(copy, copy.source.offset, copy.source.strides) for copy in self._out()]
                )
                self._given = memory
            except Exception as failure:
                self._failure = failure
        return self._given

    def _into(self) -> list[NDArray[np.void]]:
        if not self._taken and self._failure is None and self._target is not None:
            try:
                filled = self._target[0]()
                self._check(
                    filled.size, [(copy, copy.target.offset, copy.target.strides) for copy in self._in()]
                )
                taken = [filled.reshape(-1).view(self._raw)]
                if self._reduce is not None:
                    count = 1 + max((copy.contribution for copy in self._in()), default=0)
                    taken = [np.zeros(filled.size, self._raw) for _ in range(count)]
                self._filled, self._taken = filled, taken
            except Exception as failure:
                self._failure = failure
        return self._taken

    def _out(self) -> Sequence[Copy]:
        return (*self._plan.keeps, *self._plan.sends)

    def _in(self) -> Sequence[Copy]:
        return (*self._plan.keeps, *self._plan.receives)

    def _check(self, size: int, places: Sequence[tuple[Copy, int, tuple[int, ...]]]) -> None:
        for copy, offset, strides in places:
            last = offset + sum((extent - 1) * step for extent, step in zip(copy.shape, strides, strict=True))
            if last >= size:
                message = f"the local tensor has {size} elements, its layout says that it has more"
                raise error("UCP-E-MISMATCH", message, at=self._at)

    def _compute(self, filled: NDArray[np.generic]) -> None:
        kind = self._kind
        if self._reduce is None and not self._exponent:
            return
        memory = filled.view(self._raw)
        results = memory
        if self._reduce is not None:
            contributions = [one.view(kind.numpy) for one in self._taken]
            results = reduced(contributions, kind, self._reduce, at=self._at).view(self._raw)
        for copy in self._in():
            if copy.contribution == 0:
                found = strided_view(results, copy.shape, copy.target)
                elements = np.ascontiguousarray(found).view(kind.numpy).reshape(copy.shape)
                if self._exponent:
                    elements = scaled(elements, kind, self._exponent, at=self._at)
                target = strided_view(memory, copy.shape, copy.target)
                target[...] = np.ascontiguousarray(elements).view(self._raw).reshape(copy.shape)
