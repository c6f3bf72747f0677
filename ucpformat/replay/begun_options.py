"""Options of an optimizer as the script of a job makes it: an epoch notes them, and a recovery compares them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.jsonio import equal
from ucpformat.replay.tracked import options_of
from ucpformat.update_log.reading import StoredLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.optim import Optimizer

    from ucpformat.jsonio import JsonValue

__all__ = ["BEGUN_OPTIONS", "begun_options", "require_same_options"]

BEGUN_OPTIONS: Final = "org.ucpformat.options"
"""Annotation of an epoch: options of each parameter group at the start of the job, beside those that may change."""
_FREE: Final = frozenset({"lr", "initial_lr", "foreach", "fused", "capturable", "differentiable"})
"""What schedules set, and which kernels make a step."""


def begun_options(optimizer: Optimizer) -> list[JsonValue]:
    """Return those options of an optimizer that each start of a job has to have alike; raises as `options_of`."""
    return [
        {name: value for name, value in group.items() if name not in _FREE} for group in options_of(optimizer)
    ]


def require_same_options(url: str, name: str, options: Sequence[JsonValue]) -> None:
    """Refuse options of an optimizer that are not those with which the newest epoch of a log was begun.

    That of another ``name`` has other options, and is refused for its name.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, with the option and both values.
    """
    try:
        with StoredLog(url, verify=False) as log:
            branch = log.branch()
    except UcpError:
        return  # a recovery says what is wrong with it, if it needs it
    if not branch or branch[-1].stored.epoch.optimizer != name:
        return
    noted: Any = branch[-1].stored.epoch.envelope.annotations.get(BEGUN_OPTIONS)
    if not isinstance(noted, list) or len(noted) != len(options):
        return
    for number, (mine, theirs) in enumerate(zip(options, noted, strict=True)):
        if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
            continue
        for option in sorted(mine.keys() & theirs.keys()):
            if not equal(mine[option], theirs[option]):
                message = (
                    f"{option} is {mine[option]!r}, and was {theirs[option]!r} when the log was begun; with "
                    "allow_other_options=True the recovery goes by the log"
                )
                raise error("UCP-E-MISMATCH", message, at=f"param_groups/{number}/{option}")
