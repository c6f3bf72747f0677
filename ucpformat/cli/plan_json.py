"""Plans for programs: every figure, and for one rank every copy and read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ucpformat.geometry import Runs, strided_runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.geometry import Copy, Strided
    from ucpformat.planning import Flow, Pairing, RankDetail, RankTotals, SlotPart, Survey
    from ucpformat.storage.reading.read_plan import StoredRead

__all__ = ["detail_json", "survey_json"]


def _head(pairing: Pairing) -> dict[str, object]:
    return {
        "from": pairing.source.label,
        "to": pairing.target.label,
        "route": pairing.route,
        "slots": pairing.slots,
        "bytes": pairing.nbytes,
        "kinds": len(pairing.kinds),
        "unplanned": [
            {"atom": entry.name[0], "slot": entry.name[1], "why": entry.why} for entry in pairing.unplanned
        ],
    }


def survey_json(survey: Survey) -> dict[str, object]:
    """Return the totals of all ranks, bytes throughout."""
    return {
        **_head(survey.pairing),
        "lower_bound": survey.lower_bound,
        "ranks": [{"rank": rank, **_totals(totals)} for rank, totals in survey.ranks.items()],
    }


def _totals(totals: RankTotals) -> dict[str, object]:
    flows = {"kept": totals.kept, "sent": totals.sent, "received": totals.received, "read": totals.read}
    return {
        **{name: _flow(flow) for name, flow in flows.items()},
        "fetched": totals.fetched,
        "written": totals.written,
    }


def _flow(flow: Flow) -> dict[str, int]:
    return {"bytes": flow.nbytes, "messages": flow.messages, "ranges": flow.ranges}


def detail_json(detail: RankDetail) -> Iterator[str]:
    """Yield the text of one JSON object, slot by slot as they are planned: `slots` are those that the rank moves."""
    head = json.dumps({**_head(detail.pairing), "rank": detail.rank}, indent=2)
    yield head.removesuffix("\n}") + ',\n  "parts": ['
    for number, part in enumerate(detail):
        yield f"{',' if number else ''}\n    {json.dumps(_part(part))}"
    yield "\n  ]\n}\n"


def _part(part: SlotPart) -> dict[str, object]:
    item = part.item_bytes
    return {
        "atom": part.name[0],
        "slot": part.name[1],
        "keeps": [_copy(copy, item, None) for copy in part.keeps],
        "receives": [_copy(copy, item, copy.source_rank) for copy in part.receives],
        "sends": [_copy(copy, item, copy.target_rank) for copy in part.sends],
        "reads": [_read(read) for read in part.reads],
    }


def _copy(copy: Copy, item: int, peer: int | None) -> dict[str, object]:
    value: dict[str, object] = {} if peer is None else {"peer": peer}
    value["bytes"] = copy.size * item
    value["source"] = _runs(copy.shape, copy.source, item)
    value["target"] = _runs(copy.shape, copy.target, item)
    if copy.factor != 1:
        value["factor"] = str(copy.factor)
    if copy.contribution:
        value["contribution"] = copy.contribution
    return value


def _runs(shape: tuple[int, ...], memory: Strided, item: int) -> dict[str, object]:
    """Return the contiguous byte ranges of local memory, in compact form (see `geometry.Runs`)."""
    runs: Runs = strided_runs(memory.offset, shape, memory.strides)
    value: dict[str, object] = {"first": runs.first * item, "length": runs.length * item}
    if runs.loops:
        value["loops"] = [[count, stride * item] for count, stride in runs.loops]
    return value


def _read(read: StoredRead) -> dict[str, object]:
    return {
        "key": read.key,
        "start": read.start,
        "stop": read.stop,
        "chunk": read.chunk,
        "needed": read.needed,
    }
