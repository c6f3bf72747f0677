"""Modules, optimizers and other stateful objects as entries of a state: their state dicts, and back.

Torch's own functions give names that do not depend on wrappers, and states of optimizers by the names of parameters
(torch/distributed/checkpoint/state_dict.py, PyTorch 2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ucpformat.errors import error

if TYPE_CHECKING:
    from torch.nn import Module

__all__ = ["Unwrapped", "as_state", "state_to_save", "unwrapped"]


def _nothing() -> None:
    """Do nothing: there is nothing to undo."""


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """An object of a state as its state dict: ``take`` gives it back, ``leave`` lets the object be as it was.

    Torch makes the states of a fresh optimizer by a step; one that nothing is loaded into is to stay fresh.
    """

    content: Any
    take: Callable[[Any], None]
    leave: Callable[[], None] = _nothing


_S = TypeVar("_S")


def as_state(state: _S | Module) -> _S | dict[str, Any]:
    """Return a module as the state ``{"model": module}``, and anything else as it is."""
    return {"model": state} if _is(state, "nn.Module") else cast("_S", state)


def state_to_save(given: Mapping[str, Any] | Module) -> Mapping[str, Any]:
    """Return the state with the state dicts of objects at its top level in their place; raises as `unwrapped`."""
    state = as_state(given)
    objects = unwrapped(state)
    if not objects:
        return state
    for one in objects.values():
        one.leave()
    return {**state, **{key: one.content for key, one in objects.items()}}


def unwrapped(state: Mapping[str, Any]) -> dict[str, Unwrapped]:
    """Return the objects at the top level of a state.

    An object is a ``torch.nn.Module``, a ``torch.optim.Optimizer`` whose module stands beside it, or anything else
    with ``state_dict()`` and ``load_state_dict()``.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT`` for an optimizer of parameters that no module beside it has, and for what
            is no dict.
    """
    given: object = state
    if not isinstance(given, Mapping):
        message = f'a state is a dict, such as {{"model": model}}, and not a {type(given).__name__}'
        raise error("UCP-E-OBJECT", message)
    objects = {
        key: value
        for key, value in state.items()
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    }
    modules = {key: value for key, value in objects.items() if _is(value, "nn.Module")}
    return {key: _unwrapped(key, value, modules) for key, value in objects.items()}


def _is(value: object, name: str) -> bool:
    kind: Any = sys.modules.get("torch")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    return kind is not None and isinstance(value, kind)


def _unwrapped(key: str, value: Any, modules: Mapping[str, Any]) -> Unwrapped:
    if _is(value, "nn.Module"):
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

        def fill_model(found: Any) -> None:
            set_model_state_dict(value, found)

        return Unwrapped(get_model_state_dict(value), fill_model)
    if _is(value, "optim.Optimizer"):
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        module = _module_of(key, value, modules)

        def fill_optimizer(found: Any) -> None:
            set_optimizer_state_dict(module, value, found)

        is_fresh = not value.state
        found = get_optimizer_state_dict(module, value)
        if not is_fresh:
            return Unwrapped(found, fill_optimizer)
        _count_no_step(value)
        return Unwrapped(get_optimizer_state_dict(module, value), fill_optimizer, value.state.clear)
    return Unwrapped(value.state_dict(), value.load_state_dict)


def _count_no_step(optimizer: Any) -> None:
    """Take back the step that torch has made, with a learning rate of 0, to have states of a fresh optimizer."""
    for states in optimizer.state.values():
        step: Any = states.get("step") if isinstance(states, dict) else None
        if _is(step, "Tensor"):
            step.zero_()
        elif isinstance(step, int | float):
            states["step"] = type(step)(0)
        if isinstance(states, dict) and _is(states.get("mu_product"), "Tensor"):  # NAdam's product over steps
            states["mu_product"].fill_(1)


def _module_of(key: str, optimizer: Any, modules: Mapping[str, Any]) -> Any:
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for module in modules.values():
        if wanted <= {id(parameter) for parameter in module.parameters()}:
            return module
    raise error(
        "UCP-E-OBJECT",
        "no module of the state has all parameters of this optimizer; put the module beside it, "
        "or give the optimizer's state dict",
        at=key,
    )
