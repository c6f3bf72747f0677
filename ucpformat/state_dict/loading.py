"""Filling a live state from a checkpoint, in place: what goes where, and whether it fits (SPEC section 17).

Everything is compared before anything is read, on all ranks of a job together, so that all go on or all raise.
"""

from __future__ import annotations

import json
from dataclasses import replace as with_changes
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.group import Group, agreed
from ucpformat.errors import error
from ucpformat.state_dict.keys.paths import replace
from ucpformat.state_dict.load_options import without_effect
from ucpformat.state_dict.matching import Match, match_state
from ucpformat.state_dict.mismatches import of_match, of_missing, of_unexpected
from ucpformat.state_dict.reading import LoadReport, read_tensors

if TYPE_CHECKING:
    from ucpformat.reader import Checkpoint
    from ucpformat.state_dict.load_options import LoadOptions

__all__ = ["fill_state"]


def fill_state(
    state: dict[str, Any], checkpoint: Checkpoint, group: Group, options: LoadOptions
) -> tuple[LoadReport, set[str]]:
    """Fill the tensors of ``state`` and replace its other entries; also says which top-level entries were filled.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs, or what of the
            options fits nothing.
    """
    match = _compared(state, checkpoint, group, options)
    report = read_tensors(match.tensors, checkpoint, group, once=options.read_once)
    for path, value in match.values:
        replace(state, path, value)
    missing = tuple(one.name for one in match.missing)
    return with_changes(report, missing=missing, unexpected=tuple(match.unexpected)), match.filled


def _compared(state: dict[str, Any], checkpoint: Checkpoint, group: Group, options: LoadOptions) -> Match:
    """Return what this rank reads, once all ranks agree that it fits; `unexpected` is then what no rank asks for."""
    found: list[Match] = []

    def compare() -> bytes:
        match = match_state(state, checkpoint, group.rank, options)
        found.append(match)
        problem = of_match(match, strict=options.strict)
        # What was given by name may fit on another rank: until that is known, a typo does not hide behind the rest.
        said = [options.read_once, options.strict, match.wanted, len(match.filled), match.fits]
        return json.dumps([problem, *said, match.unexpected]).encode()

    replies = [json.loads(reply) for reply in agreed(group, compare)]
    problems, once, strict, wanted, filled, named, unexpected = zip(*replies, strict=True)
    (match,) = found
    for option, given in (("read_once", once), ("strict", strict)):
        if len(set(given)) > 1:
            raise error("UCP-E-MISMATCH", f"ranks differ in {option}=: give all the same")
    if (fault := without_effect(named)) is not None:
        raise fault
    by_rank = {rank: problem for rank, problem in zip(group.ranks, problems, strict=True) if problem}
    for rank in (group.rank, *by_rank):
        if rank in by_rank:
            where = "" if rank == group.rank else f" (on rank {rank})"
            raise error("UCP-E-MISMATCH", f"{by_rank[rank]}{where}")
    if not any(wanted):
        raise error("UCP-E-MISMATCH", _nothing_wanted(options))
    if not any(filled) and not options.strict:
        raise error("UCP-E-MISMATCH", of_missing(match))
    match.unexpected = sorted(set.intersection(*map(set, unexpected)))
    if match.unexpected and options.strict:
        raise error("UCP-E-MISMATCH", of_unexpected(match.unexpected))
    return match


def _nothing_wanted(options: LoadOptions) -> str:
    if options.only.is_given:
        return "nothing was loaded: only= takes no entry of the state"
    return "nothing was loaded: the state is empty; give what is to be filled, or no state to get everything"
