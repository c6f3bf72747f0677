"""Plans from one arrangement of ranks to another, or from a checkpoint, before anything moves (SPEC-ARRANGEMENTS).

Nothing here reads data: documents and chunk tables alone.
"""

from ucpformat.planning.detail import RankDetail, SlotPart, rank_detail
from ucpformat.planning.explain import Explanation, StepTaken, explain, rank_words, shape_words
from ucpformat.planning.movements import Movements, movements
from ucpformat.planning.pairing import Kind, Pairing, Route, Unplanned, about, pair
from ucpformat.planning.side import Side, SlotName, arrangement_side, checkpoint_side, patterns_side
from ucpformat.planning.survey import Flow, RankTotals, Survey, survey

__all__ = [
    "Explanation",
    "Flow",
    "Kind",
    "Movements",
    "Pairing",
    "RankDetail",
    "RankTotals",
    "Route",
    "Side",
    "SlotName",
    "SlotPart",
    "StepTaken",
    "Survey",
    "Unplanned",
    "about",
    "arrangement_side",
    "checkpoint_side",
    "explain",
    "movements",
    "pair",
    "patterns_side",
    "rank_detail",
    "rank_words",
    "shape_words",
    "survey",
]
