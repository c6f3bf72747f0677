"""Filling a live state from a checkpoint, in place: what goes where, and whether it fits (SPEC section 17).

Everything is compared before anything is read, on all ranks of a job together, so that all go on or all raise.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.group import Group, agreed
from ucpformat.errors import error
from ucpformat.frameworks.live.matching import LoadOptions, Match, match_state, stored_slots, stored_values
from ucpformat.frameworks.live.mismatches import of_match, of_unexpected
from ucpformat.frameworks.live.reading import LoadReport, read_tensors
from ucpformat.frameworks.state.paths import replace

if TYPE_CHECKING:
    from ucpformat.reader import Checkpoint

__all__ = ["LoadOptions", "fill_state", "stored_slots", "stored_values"]


def fill_state(
    state: dict[str, Any], checkpoint: Checkpoint, group: Group, options: LoadOptions
) -> LoadReport:
    """Fill the tensors of ``state`` and replace its other entries.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs.
    """
    plan: Match | None = None

    def compare() -> bytes:
        nonlocal plan
        plan = match_state(state, checkpoint, group.rank, options)
        problem = of_match(plan)
        if problem is not None:
            raise error("UCP-E-MISMATCH", problem)
        return json.dumps([options.read_once, plan.unexpected]).encode()

    replies = [json.loads(reply) for reply in agreed(group, compare)]
    if len({once for once, _ in replies}) > 1:
        raise error("UCP-E-MISMATCH", "some ranks load with read_once, others without: give all the same")
    unexpected = sorted(set.intersection(*(set(extra) for _, extra in replies)))
    if unexpected and options.strict:
        raise error("UCP-E-MISMATCH", of_unexpected(unexpected))

    tensors = plan.tensors if plan is not None else []
    report = read_tensors(tensors, checkpoint, group, once=options.read_once)
    for path, value in plan.values if plan is not None else ():
        replace(state, path, value)
    return report
