"""Problems and losses as lines for people: folded, so that a lost pack of ten thousand tensors fits a screen."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from ucpformat.text import human_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ucpformat.errors import Problem
    from ucpformat.validation import Loss, Survey

__all__ = ["lines_of_problems", "lines_of_survey"]

_ALIKE: Final = 20
"""Problems of one code in one room of the store, and lines of losses, that are written out."""
_RANGES: Final = 4
_NUMBER: Final = re.compile(r"(\d+)")


def lines_of_problems(problems: Sequence[Problem]) -> Iterator[str]:
    """Return a line for each problem, and one for the rest of those that are alike."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    for problem in problems:
        alike = problem.code, problem.at.partition("/")[0]
        seen[alike] += 1
        if seen[alike] <= _ALIKE:
            yield f"{problem.severity} {problem.code} at {problem.at}: {problem.message}"
    for (code, room), count in seen.items():
        if count > _ALIKE:
            yield f"... and {count - _ALIKE:,} more {code} at {room}/; --format json has all"


def lines_of_survey(survey: Survey) -> Iterator[str]:
    """Return what is lost, a line for each tensor or for several that are alike, and what survives."""
    if survey.is_whole:
        return
    entries = [*_folded([loss for loss in survey.losses if loss.is_whole])]
    entries += [(1, loss.nbytes, _brief(loss)) for loss in survey.losses if not loss.is_whole]
    for _, _, line in entries[:_ALIKE]:
        yield f"lost: {line}"
    rest = entries[_ALIKE:]
    if rest:
        count, nbytes = sum(entry[0] for entry in rest), sum(entry[1] for entry in rest)
        yield f"lost: ... and {human_bytes(nbytes)} of {count:,} more tensors; --format json has all"
    for part in survey.parts[:_ALIKE]:
        yield f"lost: {part}"
    if len(survey.parts) > _ALIKE:
        yield f"lost: ... and {len(survey.parts) - _ALIKE:,} more index parts; --format json has all"
    if survey.state:
        yield "lost: all values, optimizers and blobs"
    if survey.blobs:
        more = f" and {len(survey.blobs) - _ALIKE:,} more" if len(survey.blobs) > _ALIKE else ""
        yield f"lost: blobs {', '.join(survey.blobs[:_ALIKE])}{more}"
    whole = survey.tensors - len(survey.losses)
    saved = survey.nbytes - survey.lost_bytes
    yield (
        f"survives: {human_bytes(saved)} of {human_bytes(survey.nbytes)}; "
        f"{whole:,} tensors whole, {survey.partly:,} in part, {survey.gone:,} not at all"
        + (f"; {survey.unchecked:,} were not checked" if survey.unchecked else "")
        + (f"; {sum(part.atoms for part in survey.parts):,} atoms are unknown" if survey.parts else "")
    )


def _brief(loss: Loss) -> str:
    ranges = loss.ranges
    more = f" and {len(ranges) - _RANGES:,} more ranges" if len(ranges) > _RANGES else ""
    return f"{loss.atom} {loss.slot} {', '.join(ranges[:_RANGES])}{more} of {list(loss.shape)}"


def _folded(losses: Sequence[Loss]) -> Iterator[tuple[int, int, str]]:
    """Yield tensors that are lost whole, those whose names differ in numbers alone by one line."""
    groups: dict[str, list[Loss]] = defaultdict(list)
    for loss in losses:
        groups[_NUMBER.sub("0", loss.atom)].append(loss)
    for group in groups.values():
        nbytes = sum(loss.nbytes for loss in group)
        if len(group) == 1:
            yield 1, nbytes, str(group[0])
            continue
        slots = ", ".join(sorted({loss.slot for loss in group}))
        count = f"{len(group):,} tensors, {human_bytes(nbytes)}"
        yield len(group), nbytes, f"{_common([loss.atom for loss in group])} {slots}: all of {count}"


def _common(names: Sequence[str]) -> str:
    """Write names that differ in numbers alone as one, such as ``layers.{0-31}.weight``."""
    words = []
    for pieces in zip(*map(_NUMBER.split, names), strict=True):
        candidates = sorted(set(pieces), key=lambda piece: (len(piece), piece))
        if len(candidates) == 1:
            words.append(candidates[0])
        else:
            is_run = int(candidates[-1]) - int(candidates[0]) + 1 == len(candidates)
            words.append(
                f"{{{candidates[0]}-{candidates[-1]}}}"
                if is_run
                else f"{{{candidates[0]},...,{candidates[-1]}}}"
            )
    return "".join(words)
