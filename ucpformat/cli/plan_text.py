"""Plans for people: tables of what every rank moves, or of what one rank does slot by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ucpformat.cli.report import table
from ucpformat.geometry import strided_runs
from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ucpformat.geometry import Copy
    from ucpformat.planning import Pairing, RankDetail, RankTotals, SlotPart, Survey, Unplanned

__all__ = ["detail_lines", "survey_lines"]

_RANKS_SHOWN: Final = 16
_NAMES_SHOWN: Final = 3


def survey_lines(survey: Survey) -> Iterator[str]:
    """Yield lines: what goes, totals beside the lower bound, the largest and smallest rank, a table of ranks."""
    yield from _head(survey.pairing)
    totals = list(survey.ranks.values())
    storage = survey.pairing.route == "storage"
    if storage:
        read, fetched = sum(entry.read.nbytes for entry in totals), sum(entry.fetched for entry in totals)
        yield f"read {human_bytes(read)} of the checkpoint, {human_bytes(fetched)} with whole checksum blocks"
        yield from _extremes(survey, "read", lambda entry: entry.read.nbytes)
    else:
        sent, kept = sum(entry.sent.nbytes for entry in totals), sum(entry.kept.nbytes for entry in totals)
        bound = survey.lower_bound
        times = f", {sent / bound:.2f} times as much" if bound else ""
        yield f"kept in place {human_bytes(kept)}"
        yield f"lower bound of what must be sent {human_bytes(bound)}, sent {human_bytes(sent)}{times}"
        yield from _extremes(survey, "sent", lambda entry: entry.sent.nbytes)
        yield from _extremes(survey, "received", lambda entry: entry.received.nbytes)
    shown = sorted(survey.ranks.items(), key=lambda item: (-item[1].moved, item[0]))[:_RANKS_SHOWN]
    headings, row = (_STORED_HEADINGS, _stored_row) if storage else (_SENT_HEADINGS, _sent_row)
    rows = [row(rank, entry) for rank, entry in sorted(shown)]
    yield from table(headings, rows, right=frozenset(headings))
    hidden = len(survey.ranks) - len(shown)
    if hidden:
        yield f"and {hidden} ranks that move no more each; --format json lists all"


_SENT_HEADINGS: Final = (
    "rank",
    "kept",
    "sent",
    "messages",
    "ranges",
    "received",
    "messages",
    "ranges",
    "written",
)
_STORED_HEADINGS: Final = ("rank", "read", "reads", "fetched", "written")


def _sent_row(rank: int, entry: RankTotals) -> tuple[str, ...]:
    return (
        str(rank),
        human_bytes(entry.kept.nbytes),
        human_bytes(entry.sent.nbytes),
        str(entry.sent.messages),
        str(entry.sent.ranges),
        human_bytes(entry.received.nbytes),
        str(entry.received.messages),
        str(entry.received.ranges),
        human_bytes(entry.written),
    )


def _stored_row(rank: int, entry: RankTotals) -> tuple[str, ...]:
    return (
        str(rank),
        human_bytes(entry.read.nbytes),
        str(entry.read.messages),
        human_bytes(entry.fetched),
        human_bytes(entry.written),
    )


def _head(pairing: Pairing) -> Iterator[str]:
    how = "out of the checkpoint" if pairing.route == "storage" else "from rank to rank"
    yield f"from {pairing.source.label} to {pairing.target.label}, {how}"
    yield f"{pairing.slots} slots, {human_bytes(pairing.nbytes)}, in {len(pairing.kinds)} kinds"
    reasons: dict[str, list[Unplanned]] = {}
    for entry in pairing.unplanned:
        reasons.setdefault(entry.why, []).append(entry)
    for why, entries in reasons.items():
        names = ", ".join("/".join(entry.name) for entry in entries[:_NAMES_SHOWN])
        more = ", ..." if len(entries) > _NAMES_SHOWN else ""
        yield f"{len(entries)} slots are left out, {why}: {names}{more}"


def _extremes(survey: Survey, word: str, measure: Callable[[RankTotals], int]) -> Iterator[str]:
    """Yield who does most and least, and how far the most is above the mean of those that do anything."""
    doing = [(measure(entry), rank) for rank, entry in survey.ranks.items() if measure(entry)]
    if not doing:
        return
    most, least = max(doing, key=lambda item: (item[0], -item[1])), min(doing)
    mean = sum(nbytes for nbytes, _ in doing) / len(doing)
    yield (
        f"{word} by {len(doing)} of {len(survey.ranks)} ranks: most {human_bytes(most[0])} by rank {most[1]}, "
        f"{most[0] / mean:.2f} times the mean; least {human_bytes(least[0])} by rank {least[1]}"
    )


def detail_lines(detail: RankDetail) -> Iterator[str]:
    """Yield lines: what the rank does for each slot, by peer or by stored object."""
    yield from _head(detail.pairing)
    rows: list[tuple[str, ...]] = []
    totals = dict.fromkeys(("keeps", "receives", "sends", "reads"), 0)
    for part in detail:
        for verb, what, nbytes, ranges in _actions(part):
            rows.append(("/".join(part.name), f"{verb} {what}".rstrip(), human_bytes(nbytes), str(ranges)))
            totals[verb.split()[0]] += nbytes
    if not rows:
        yield f"rank {detail.rank} does nothing"
        return
    yield f"rank {detail.rank}: " + ", ".join(
        f"{verb} {human_bytes(count)}" for verb, count in totals.items() if count
    )
    yield from table(("slot", "what", "bytes", "ranges"), rows, right=frozenset({"bytes", "ranges"}))


def _actions(part: SlotPart) -> Iterator[tuple[str, str, int, int]]:
    item = part.item_bytes
    if part.keeps:
        yield "keeps", "", *_size(part.keeps, item, sent=False)
    for source in sorted({copy.source_rank for copy in part.receives}):
        copies = [copy for copy in part.receives if copy.source_rank == source]
        yield "receives from", str(source), *_size(copies, item, sent=False)
    for target in sorted({copy.target_rank for copy in part.sends}):
        copies = [copy for copy in part.sends if copy.target_rank == target]
        yield "sends to", str(target), *_size(copies, item, sent=True)
    for key in dict.fromkeys(read.key for read in part.reads):
        reads = _joined([(read.start, read.stop) for read in part.reads if read.key == key])
        spans = ", ".join(f"[{start}, {stop})" for start, stop in reads[:_NAMES_SHOWN])
        more = ", ..." if len(reads) > _NAMES_SHOWN else ""
        yield "reads", f"{key} {spans}{more}", sum(stop - start for start, stop in reads), len(reads)


def _size(copies: Sequence[Copy], item: int, *, sent: bool) -> tuple[int, int]:
    """Return bytes and their contiguous ranges of local memory; copies that continue each other are one range."""
    single: list[tuple[int, int]] = []
    others = 0
    for copy in copies:
        memory = copy.source if sent else copy.target
        runs = strided_runs(memory.offset, copy.shape, memory.strides)
        if runs.loops:
            others += runs.count
        else:
            single.append(runs.span)
    return sum(copy.size for copy in copies) * item, others + len(_joined(single))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of one object, ascending; those that touch or overlap are one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined
