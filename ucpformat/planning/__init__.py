"""Plans from one arrangement of ranks to another, or from a checkpoint, before anything moves (SPEC 17.6).

Nothing here reads data: documents and chunk tables alone.
"""

from ucpformat.planning.detail import RankDetail, SlotPart, rank_detail
from ucpformat.planning.pairing import Kind, Pairing, Route, Unplanned, pair
from ucpformat.planning.side import Side, SlotName, arrangement_side, checkpoint_side, patterns_side
from ucpformat.planning.survey import Flow, RankTotals, Survey, survey

__all__ = [
    "Flow",
    "Kind",
    "Pairing",
    "RankDetail",
    "RankTotals",
    "Route",
    "Side",
    "SlotName",
    "SlotPart",
    "Survey",
    "Unplanned",
    "arrangement_side",
    "checkpoint_side",
    "pair",
    "patterns_side",
    "rank_detail",
    "survey",
]
