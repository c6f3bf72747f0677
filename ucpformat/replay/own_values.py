"""Values of each rank's own behind a step: random number generators, and whatever has a state dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ucpformat.errors import error
from ucpformat.model.values import decode, encode
from ucpformat.state_dict.objects import WITH_TORCH, extend

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ucpformat.jsonio import JsonValue

__all__ = ["RNG", "decoded", "encoded_values", "give_back", "own_values"]

RNG: Final = "rng"
"""The name of the state of torch's generator on the CPU."""


def own_values(state: Mapping[str, Any], *, rng: bool) -> dict[str, Any]:
    """Return the state dicts of objects by name, values that are none as they are, and torch's generator on the CPU.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for an object of the name that the generator has.
    """
    if RNG in state:
        raise error("UCP-E-MISMATCH", "the log keeps the generator itself; choose another name", at=RNG)
    found = {name: one.state_dict() if hasattr(one, "state_dict") else one for name, one in state.items()}
    if rng:
        found[RNG] = bytes(torch.get_rng_state().numpy())
    return found


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
