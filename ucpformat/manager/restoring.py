"""Restoring a state from one checkpoint of a run, by all ranks: what is damaged is passed over, and is no error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ucpformat.distributed.group import decided, reply_of
from ucpformat.errors import UcpError, error
from ucpformat.manager.collection import first_fault, is_damage
from ucpformat.state_dict.save_load import load
from ucpformat.storage.stores.urls import is_remote
from ucpformat.validation import validate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.nn import Module

    from ucpformat.distributed.group import Group
    from ucpformat.validation import Level

__all__ = ["damage_met"]

_GOOD = 0
_DAMAGED = 1
_FAILED = 2


def damage_met(
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
