"""Restoring a state from one checkpoint of a run, by all ranks: what is damaged is passed over, and is no error."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ucpformat.distributed.group import decided, reply_of
from ucpformat.errors import UcpError, error
from ucpformat.manager.collection import first_fault, is_damage
from ucpformat.manager.run_directory import step_name
from ucpformat.state_dict.save_load import load
from ucpformat.storage.stores.urls import is_remote
from ucpformat.validation import validate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Module

    from ucpformat.distributed.group import Group
    from ucpformat.manager.run_directory import RunDirectory
    from ucpformat.validation import Level

__all__ = ["Found", "first_good", "seen_by_first"]

_GOOD = 0
_DAMAGED = 1
_FAILED = 2


class Found(NamedTuple):
    """The checkpoint that a state was filled from.

    Attributes:
        step: its step.
        what: its step, in words, with its name where it was replaced by one that is damaged.
        passed: the first damage of each step that was damaged.
        said: the same by words that name each damaged checkpoint.
    """

    step: int
    what: str
    passed: dict[int, UcpError]
    said: dict[str, UcpError]


_Seen = TypeVar("_Seen")


def seen_by_first(group: Group, look: Callable[[], _Seen]) -> _Seen:
    """Return what the first rank finds, which is JSON, on all ranks."""
    found: _Seen = json.loads(decided(group, lambda: json.dumps(look()).encode()))
    return found


def first_good(
    run: RunDirectory,
    steps: Sequence[int],
    state: dict[str, Any] | Module,
    check: Level | None,
    options: Mapping[str, Any],
    group: Group,
) -> Found | None:
    """Fill ``state`` from the first of the checkpoints of ``steps`` that is not damaged; None where there is none.

    Of a step that was saved again, the earlier checkpoint comes after the one that has replaced it.

    Raises:
        UcpError: as `load`; the first damage, where all are damaged.
    """
    passed: dict[int, UcpError] = {}
    said: dict[str, UcpError] = {}
    for step in steps:
        names = seen_by_first(group, partial(run.committed, step)) or [step_name(step)]
        for name in names:
            fault = _damage_met(run.place.child(name), state, check, options, group)
            if fault is None:
                before = "" if name == names[0] else f" as it was saved before, {name}"
                return Found(step, f"step {step}{before}", passed, said)
            passed.setdefault(step, fault)
            said[f"step {step} ({name})" if len(names) > 1 else f"step {step}"] = fault
    for fault in passed.values():
        raise fault
    return None


def _damage_met(
    path: str,
    state: dict[str, Any] | Module,
    check: Level | None,
    options: Mapping[str, Any],
    group: Group,
) -> UcpError | None:
    """Fill ``state`` from a checkpoint; return the damage that kept any rank from it, as all ranks agree.

    ``options`` are those of `load`. With ``check`` the checkpoint is validated to that level before it is read.

    Raises:
        UcpError: as `load`, for what is no damage.
    """
    fault = _fault(path, check, group) or _load(path, state, options, group)
    if fault is not None and is_remote(path):
        # What was damaged on its way is whole when it comes again.
        fault = _fault(path, check, group) or _load(path, state, options, group)
    return fault


def _fault(path: str, level: Level | None, group: Group) -> UcpError | None:
    """Return what the first rank finds wrong with a checkpoint before it is read."""

    def look() -> bytes:
        fault = first_fault(path)
        found = None if fault is None else fault.problem()
        if found is None and level is not None:
            problems = validate(path, level)
            found = next((one for one in problems if one.severity == "error"), None)
        return json.dumps(None if found is None else [found.code, found.message, found.at]).encode()

    found = json.loads(decided(group, look))
    return None if found is None else error(found[0], found[1], at=found[2])


def _load(
    path: str, state: dict[str, Any] | Module, options: Mapping[str, Any], group: Group
) -> UcpError | None:
    """Fill the state; return the damage that kept any rank from it."""

    def fill() -> bytes:
        load(path, state, group=group, **options)
        return b""

    failure = reply_of(fill).failure
    if failure is None:
        verdict = _GOOD
    else:
        verdict = _DAMAGED if isinstance(failure, UcpError) and is_damage(failure.code) else _FAILED
    worst = max(said[0] for said in group.all_gather(bytes([verdict])))
    if worst == _GOOD:
        return None
    if worst == _DAMAGED and isinstance(failure, UcpError):
        return failure
    raise failure or error("UCP-E-RANK", "another rank could not load it", at=path)
