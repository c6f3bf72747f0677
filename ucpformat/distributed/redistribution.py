"""From one layout to another over a group, with no file in between (SPEC-ARRANGEMENTS).

Ranks tell one another what they hold and what they want, each plans its own part of every tensor, and the parts go
through memory of bounded size. Bytes of replicas come from all who hold them, in turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from ucpformat.distributed.description import Described, Description, Source, agree, describe
from ucpformat.distributed.group import Group, agreed
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.parcels import TensorParcel
from ucpformat.distributed.replicas import settle_replicas
from ucpformat.distributed.share import is_whole, united
from ucpformat.distributed.transport import LANES, MESSAGE_BYTES, Moved, transport
from ucpformat.errors import UcpError, error
from ucpformat.geometry import (
    Exchange,
    ExchangeTable,
    Holdings,
    Layout,
    Partial,
    RankPlan,
    RankPlanner,
    Scale,
    Spread,
    lower,
)
from ucpformat.model.dtype import dtype
from ucpformat.model.fields import relocated
from ucpformat.model.spread import check_partial_dtype, check_scale_dtype
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.distributed.save_options import Replicas
    from ucpformat.geometry import Reduce
    from ucpformat.jsonio import JsonValue

__all__ = ["Destination", "RedistributionReport", "redistribute_together"]

_KEPT: Final = 64


@dataclass(frozen=True, slots=True)
class Destination:
    """A tensor that this rank wants a part of: what of it, and the memory for it.

    ``open`` gives dense memory of the local tensor, of the data type that ``spec`` names, as late as may be;
    ``close`` is called when everything is there.
    """

    spec: SlotSpec
    open: Callable[[], NDArray[np.generic]]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class RedistributionReport:
    """What this rank did: bytes that it sent in ``messages``, received, and copied within itself.

    ``staged`` are the most bytes that lay in messages at once.
    """

    sent: int
    received: int
    kept: int
    messages: int
    staged: int


def redistribute_together(
    describe_source: Callable[[], LocalState],
    describe_target: Callable[[Described], Mapping[SlotName, Destination]],
    group: Group,
    *,
    message_bytes: int = MESSAGE_BYTES,
    replicas: Replicas = "compare",
) -> RedistributionReport:
    """Fill what every rank of ``group`` wants from what every rank holds; all of them call this.

    ``describe_source`` gives what this rank holds, ``describe_target`` what it wants, when it knows what all hold.
    ``replicas`` says what is done about copies that differ, of what is wanted (`settle_replicas`).

    Raises:
        UcpError: on all ranks the same: ``UCP-E-MISMATCH`` where something is wanted that none holds, or of another
            shape or data type, where entries of each coordinate's own would change hands, and where copies differ that
            are to be equal; ``UCP-E-COVER`` where a part of it is held by none; ``UCP-E-LAYOUT``; ``UCP-E-INEXACT`` for
            a factor that rounds.
    """
    held: LocalState | None = None
    wanted: Mapping[SlotName, Destination] = {}
    options: dict[str, JsonValue] = {"message_bytes": message_bytes, "replicas": replicas}

    def holds() -> tuple[Description, bytes]:
        nonlocal held
        held = describe_source()
        return describe(held, options), b""

    source, _ = agree(group, holds)

    def wants() -> tuple[Description, bytes]:
        nonlocal wanted
        wanted = describe_target(source)
        return describe(LocalState(_atoms(wanted), {}), options), b""

    target, _ = agree(group, wants)
    if held is None:  # pragma: no cover - a step that did not raise has set it
        raise AssertionError("nothing was described")
    _settle(held, source, target, group, replicas)
    return _Redistribution(source, target, held, wanted, group, message_bytes).run()


def _settle(held: LocalState, source: Described, target: Described, group: Group, replicas: Replicas) -> None:
    """Let ``source`` name one rank for copies that differ; what is not wanted is not compared."""
    if len(group.ranks) == 1:
        return
    moving = Described(
        source.atoms, {name: source.sources[name] for name in target.sources if name in source.sources}
    )
    try:
        settle_replicas(held, moving, group, replicas)
    except UcpError as refusal:
        raise error(refusal.code, refusal.message, at=refusal.at.removesuffix("/value")) from None
    source.sources.update(moving.sources)


def _atoms(wanted: Mapping[SlotName, Destination]) -> list[AtomSpec]:
    slots: dict[str, dict[str, SlotSpec]] = {}
    for (atom, slot), destination in wanted.items():
        slots.setdefault(atom, {})[slot] = destination.spec
    return [AtomSpec(name, found) for name, found in slots.items()]


class _Redistribution:
    """One rank's part."""

    def __init__(
        self,
        source: Described,
        target: Described,
        held: LocalState,
        wanted: Mapping[SlotName, Destination],
        group: Group,
        message_bytes: int,
    ) -> None:
        self._source = source
        self._target = target
        self._held = held
        self._wanted = wanted
        self._group = group
        self._message_bytes = message_bytes
        self._plans = _Plans(group.rank, source, target)

    def run(self) -> RedistributionReport:
        """Plan everything before anything moves, then move it tensor by tensor."""
        names = sorted(self._target.sources)

        def check() -> bytes:
            for name in names:
                self._check(name)
            return b""

        agreed(self._group, check)
        moved = Moved()
        kept = 0
        failure: BaseException | None = None
        for wave in self._waves(names):
            parcels = []
            for name in wave:
                plan = self._plans.plan(name)
                if name in self._wanted or plan.sends:
                    parcels.append(self._parcel(name, plan))
            for parcel in parcels:
                kept += parcel.keep()
            transport(parcels, self._group, moved, message_bytes=self._message_bytes)
            for parcel in parcels:
                failure = parcel.finish() or failure

        def report() -> bytes:
            if failure is not None:
                raise failure
            return b""

        agreed(self._group, report)
        return RedistributionReport(moved.sent, moved.received, kept, moved.messages, moved.staged)

    def _check(self, name: SlotName) -> None:
        at = _dotted(name)
        wanted = self._target.atoms[name[0]].slots[name[1]]
        atom = self._source.atoms.get(name[0])
        held = None if atom is None else atom.slots.get(name[1])
        if held is None:
            raise error("UCP-E-MISMATCH", "no rank has this tensor in its state", at=at)
        if (held.dtype, held.shape) != (wanted.dtype, wanted.shape):
            message = f"{wanted.dtype}{list(wanted.shape)} is wanted, {held.dtype}{list(held.shape)} is held"
            raise error("UCP-E-MISMATCH", message, at=at)
        _arithmetic(self._source.sources[name], self._target.sources[name], held.dtype, at=at)
        self._plans.check(name)

    def _waves(self, names: Sequence[SlotName]) -> Iterator[list[SlotName]]:
        """Yield tensors that move together, the same on all ranks: so many that messages fill up, and no more."""
        most = self._message_bytes * LANES * len(self._group.ranks)
        wave: list[SlotName] = []
        nbytes = 0
        for name in names:
            slot = self._target.atoms[name[0]].slots[name[1]]
            size = math.prod(slot.shape) * dtype(slot.dtype).item_bytes
            # Whoever wants a tensor with a pending reduction has all contributions in memory at once.
            size *= _contributions(self._source.sources[name])
            if wave and nbytes + size > most:
                yield wave
                wave, nbytes = [], 0
            wave.append(name)
            nbytes += size
        if wave:
            yield wave

    def _parcel(self, name: SlotName, plan: RankPlan) -> TensorParcel:
        sources, targets = self._source.sources[name], self._target.sources[name]
        kind = dtype(self._target.atoms[name[0]].slots[name[1]].dtype)
        reduce, exponent = _arithmetic(sources, targets, kind.name, at=_dotted(name))
        wanted = self._wanted.get(name)
        return TensorParcel(
            plan,
            kind,
            self._held.arrays.get(name),
            None if wanted is None else (wanted.open, wanted.close),
            reduce=reduce,
            exponent=exponent,
            at=_dotted(name),
        )


def _dotted(name: SlotName) -> str:
    return name[0] if name[1] == "value" else "/".join(name)


def _arithmetic(
    sources: Sequence[Source], targets: Sequence[Source], kind: str, *, at: str
) -> tuple[Reduce | None, int]:
    """Return how contributions are reduced, and by which power of two the result is multiplied.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for what the data type has no arithmetic for, and factors that round.
    """
    before, after = (
        Fraction(math.prod(step.factor for step in _steps(side) if isinstance(step, Scale)))
        for side in (sources, targets)
    )
    partial = next((step for step in _steps(sources) if isinstance(step, Partial)), None)
    if partial is not None:
        check_partial_dtype(kind, partial.reduce, at=at)
    factor = after / before
    if factor == 1:
        return (None if partial is None else partial.reduce), 0
    check_scale_dtype(kind, at=at)
    exponent = Scale(factor).exponent
    if exponent is None:
        raise error("UCP-E-LAYOUT", "a factor that is no power of two is not exact", at=at)
    return (None if partial is None else partial.reduce), exponent


def _steps(sources: Sequence[Source]) -> tuple[object, ...]:
    """Return the steps that do arithmetic, of the one layout that has them; `united` refuses several."""
    layout = sources[0].layout
    return () if layout is None else layout.steps


def _contributions(sources: Sequence[Source]) -> int:
    layout = sources[0].layout
    if layout is None:
        return 1
    sizes = {axis.name: axis.size for axis in layout.mesh.axes}
    return math.prod(sizes[step.axis] for step in layout.steps if isinstance(step, Partial))


_Side = tuple[Source, ...]


class _Plans:
    """The part of one rank in every tensor; what tensors that are spread alike have in common is worked out once."""

    def __init__(self, rank: int, source: Described, target: Described) -> None:
        self._rank = rank
        self._source = source
        self._target = target
        self._layouts: tuple[dict[Layout, int], dict[Layout, int]] = ({}, {})
        self._turns: dict[tuple[_Side, _Side, tuple[int, ...]], int] = {}
        for name, sides in target.sources.items():
            for layouts, found in zip(self._layouts, (source.sources.get(name, ()), sides), strict=True):
                for one in found:
                    if one.layout is not None:
                        layouts.setdefault(one.layout, len(layouts))
        table = ExchangeTable(*(tuple(layouts) for layouts in self._layouts))
        self._planner = RankPlanner(rank, table)
        self._exchange = lru_cache(maxsize=_KEPT)(self._exchange_of)
        self._spread = lru_cache(maxsize=None)(self._spread_of)

    def check(self, name: SlotName) -> None:
        """Plan without a turn: raises what `plan` would."""
        self._planned(name, 0)

    def plan(self, name: SlotName) -> RankPlan:
        """Return the plan for the next tensor; all ranks ask for all tensors in the same order, once."""
        key = self._key(name)
        turn = self._turns[key] = self._turns.get(key, -1) + 1
        return self._planned(name, turn)

    def _key(self, name: SlotName) -> tuple[_Side, _Side, tuple[int, ...]]:
        shape = self._target.atoms[name[0]].slots[name[1]].shape
        return tuple(self._source.sources[name]), tuple(self._target.sources[name]), shape

    def _planned(self, name: SlotName, turn: int) -> RankPlan:
        sources, targets, shape = self._key(name)
        at = _dotted(name)
        try:
            before, after = self._spread(0, sources, shape), self._spread(1, targets, shape)
            if before is not None and after is not None:
                plan = self._planner.plan(before, after, turn=turn)
                return RankPlan(self._rank, (), (), ()) if plan is None else plan
            return self._exchange(sources, targets, shape, at).rank(self._rank, turn=turn)
        except UcpError as refusal:
            raise (refusal if refusal.at == at else relocated(refusal, at)) from None

    def _spread_of(self, side: int, sources: _Side, shape: tuple[int, ...]) -> Spread | None:
        """Return how a tensor is spread where all that hold it say so by one layout."""
        layout, place = sources[0].layout, sources[0].place
        if len(sources) > 1 or layout is None or not is_whole(sources[0], lower(layout, shape, place=place)):
            return None
        return Spread(self._layouts[side][layout], shape, place)

    def _exchange_of(self, sources: _Side, targets: _Side, shape: tuple[int, ...], at: str) -> Exchange:
        return Exchange(self._holdings(0, sources, shape, at), self._holdings(1, targets, shape, at))

    def _holdings(self, side: int, sources: _Side, shape: tuple[int, ...], at: str) -> Holdings:
        layout = sources[0].layout
        if layout is not None and self._spread(side, sources, shape) is not None:
            return lower(layout, shape, place=sources[0].place)
        return united(sources, shape, at=at)
