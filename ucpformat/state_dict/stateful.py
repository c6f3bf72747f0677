"""Modules, optimizers and other stateful objects as entries of a state: their state dicts, and back.

Torch's own functions give names that do not depend on wrappers, and states of optimizers by the names of parameters
(torch/distributed/checkpoint/state_dict.py, PyTorch 2.13).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
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
    trained = {key: {id(one) for one in module.parameters()} for key, module in modules.items()}
    beside: dict[str, dict[str, Any]] = {key: {} for key in modules}
    for key, value in objects.items():
        if key not in modules and _is(value, "optim.Optimizer"):
            beside[_module_of(key, value, trained)][key] = value
    found = {key: one for key, module in modules.items() for key, one in _trained(key, module, beside[key])}
    return {
        key: found[key] if key in found else Unwrapped(value.state_dict(), value.load_state_dict)
        for key, value in objects.items()
    }


def _is(value: object, name: str) -> bool:
    kind: Any = sys.modules.get("torch")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    return kind is not None and isinstance(value, kind)


def _trained(key: str, module: Any, optimizers: Mapping[str, Any]) -> Iterator[tuple[str, Unwrapped]]:
    """Yield a module and the optimizers that train it, by their keys.

    Torch looks up all names of the module for each optimizer that it is given. So it gets all of them as one, unless
    these train the same parameters: their states would become those of one.
    """
    from torch.distributed.checkpoint import state_dict as torch_names

    def fill_model(found: Any) -> None:
        torch_names.set_model_state_dict(module, found)

    fresh = {name: one for name, one in optimizers.items() if not one.state}
    if idle := [one for one in fresh.values() if not _has_gradient(one)]:
        torch_names.get_optimizer_state_dict(module, _as_one(idle))  # makes a step
    for optimizer in fresh.values():
        _count_no_step(optimizer)
    trained = [id(one) for optimizer in optimizers.values() for one in _parameters(optimizer)]
    if not optimizers or len(trained) != len(set(trained)):
        yield key, Unwrapped(torch_names.get_model_state_dict(module), fill_model)
        contents = [torch_names.get_optimizer_state_dict(module, one) for one in optimizers.values()]
    else:
        model, together = torch_names.get_state_dict(module, _as_one(list(optimizers.values())))
        yield key, Unwrapped(model, fill_model)
        contents = list(_parted(together, [len(one.param_groups) for one in optimizers.values()]))
    for (name, optimizer), content in zip(optimizers.items(), contents, strict=True):
        leave = optimizer.state.clear if name in fresh else _nothing
        yield name, Unwrapped(content, _filling(module, optimizer), leave)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _has_gradient(optimizer: Any) -> bool:
    return any(one.grad is not None for one in _parameters(optimizer))


def _as_one(optimizers: Sequence[Any]) -> Any:
    return [_Together(optimizers)]


class _Together:
    """Optimizers as one: as much of an optimizer as torch asks for its state dict, or to make a first step."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = optimizers
        self.param_groups = [group for one in optimizers for group in one.param_groups]
        self.state = [one.state for one in optimizers if one.state]

    def state_dict(self) -> dict[str, Any]:
        """Return their state dicts as one, with numbers of parameters that go on from one to the next."""
        states: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        begin = 0
        for one in self._optimizers:
            own = one.state_dict()
            states |= {begin + number: state for number, state in own["state"].items()}
            groups += [
                {**group, "params": [begin + number for number in group["params"]]}
                for group in own["param_groups"]
            ]
            begin += len(list(_parameters(one)))
        return {"state": states, "param_groups": groups}

    def step(self, closure: None = None) -> None:
        """Make a step of each."""
        for one in self._optimizers:
            one.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Take away the gradients of each."""
        for one in self._optimizers:
            one.zero_grad(set_to_none)


def _filling(module: Any, optimizer: Any) -> Callable[[Any], None]:
    from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

    return lambda found: set_optimizer_state_dict(module, optimizer, found)


def _parted(together: Any, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the states of optimizers that torch has put together, each with so many groups of them."""
    groups = iter(together["param_groups"])
    for count in counts:
        own = list(islice(groups, count))
        names = (name for group in own for name in group["params"])
        states = {name: together["state"][name] for name in names if name in together["state"]}
        yield {"state": states, "param_groups": own}


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


def _module_of(key: str, optimizer: Any, modules: Mapping[str, set[int]]) -> str:
    """Return the key of the module, given its parameters by their `id`, that an optimizer trains."""
    wanted = {id(parameter) for parameter in _parameters(optimizer)}
    for name, parameters in modules.items():
        if wanted <= parameters:
            return name
    raise error(
        "UCP-E-OBJECT",
        "no module of the state has all parameters of this optimizer; put the module beside it, "
        "or give the optimizer's state dict",
        at=key,
    )
