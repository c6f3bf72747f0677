"""Values of each rank's own behind a step: random number generators, and whatever has a state dict."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from ucpformat.errors import error
from ucpformat.model.values import decode, encode
from ucpformat.state_dict.objects import WITH_TORCH, extend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.jsonio import JsonValue

__all__ = ["RNG", "JobValues", "decoded", "encoded_values", "give_back"]

RNG: Final = "rng"
"""The name of the state of torch's generator on the CPU."""


_LATE: Final = ("step", "update", "update_parameters")
"""Methods of what a loop changes behind the optimizer's step: schedules, scalers, averages, metrics."""


class JobValues:
    """The state dicts of objects by name, other values, and torch's generator on the CPU if ``rng``.

    They are as `look` has found them; what users step behind the optimizer, when `step` has returned, is as it is
    `now`.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for an object of the name that the generator has.
    """

    def __init__(self, state: Mapping[str, Any], *, rng: bool) -> None:
        if RNG in state:
            raise error("UCP-E-MISMATCH", "the log keeps the generator itself; choose another name", at=RNG)
        self._late = {name: one for name, one in state.items() if _is_stepped_late(one)}
        self._others = {name: one for name, one in state.items() if name not in self._late}
        self._rng = rng
        self.look()

    @property
    def are_late(self) -> bool:
        """Whether there are any that change behind the optimizer."""
        return bool(self._late)

    def look(self) -> None:
        """Look at those that do not change behind the optimizer."""
        self._seen = _values(self._others)
        if self._rng:
            self._seen[RNG] = bytes(torch.get_rng_state().numpy())

    def now(self) -> dict[str, Any]:
        """Return all of them."""
        return {**self._seen, **_values(self._late)}


def _is_stepped_late(one: object) -> bool:
    return hasattr(one, "state_dict") and any(callable(getattr(one, name, None)) for name in _LATE)


def _values(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _kept(one.state_dict() if hasattr(one, "state_dict") else one) for name, one in state.items()
    }


def _kept(value: Any) -> Any:
    """Return a value that later changes of it do not reach: state dicts may have what an object goes on to change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if type(value) in (dict, OrderedDict):
        return type(value)((name, _kept(one)) for name, one in value.items())
    if type(value) in (list, tuple, set, deque):
        return type(value)(_kept(one) for one in value)
    return value


def encoded_values(values: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return values as tagged values; raises ``UCP-E-OBJECT`` for what cannot be one."""
    return {name: encode(value, at=f"state.{name}", extend=extend) for name, value in values.items()}


def decoded(values: Mapping[str, JsonValue], at: str) -> dict[str, Any]:
    """Return what tagged values were made of; raises ``UCP-E-VALUE``."""
    return {
        name: decode(value, at=f"{at}#/values/{name}", restore=WITH_TORCH) for name, value in values.items()
    }


def give_back(values: Mapping[str, Any], state: Mapping[str, Any], *, rng: bool) -> dict[str, Any]:
    """Give objects their state dicts, and torch its generator; return the values that no object takes.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for an object of which the log has no value.
    """
    left = dict(values)
    found = left.pop(RNG, None)
    if found is not None and rng:
        torch.set_rng_state(torch.frombuffer(bytearray(found), dtype=torch.uint8))
    for name, one in state.items():
        if name not in left:
            raise error(
                "UCP-E-MISMATCH", "nothing is stored of this name; leave it out of the state", at=name
            )
        if hasattr(one, "load_state_dict"):
            one.load_state_dict(left.pop(name))
    return left
