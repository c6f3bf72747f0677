"""Modules, optimizers and other stateful objects as entries of a state: their state dicts, and back.

Torch's own functions give names that do not depend on wrappers, and states of optimizers by the names of parameters
(torch/distributed/checkpoint/state_dict.py, PyTorch 2.13).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["unwrapped"]


def unwrapped(state: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, Callable[[Any], None]]]:
    """The state with the state dicts of objects at its top level in their place, and how each object takes one back.

    An object is a ``torch.nn.Module``, a ``torch.optim.Optimizer`` whose module stands beside it, or anything else
    with ``state_dict()`` and ``load_state_dict()``.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT`` for an optimizer of parameters that no module beside it has.
    """
    objects = {
        key: value
        for key, value in state.items()
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    }
    if not objects:
        return state, {}
    plain = dict(state)
    back: dict[str, Callable[[Any], None]] = {}
    modules = {key: value for key, value in objects.items() if _is(value, "nn.Module")}
    for key, value in objects.items():
        plain[key], back[key] = _unwrapped(key, value, modules)
    return plain, back


def _is(value: object, name: str) -> bool:
    kind: Any = sys.modules.get("torch")
    for part in name.split("."):
        kind = getattr(kind, part, None)
    return kind is not None and isinstance(value, kind)


def _unwrapped(key: str, value: Any, modules: Mapping[str, Any]) -> tuple[Any, Callable[[Any], None]]:
    if _is(value, "nn.Module"):
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

        def fill_model(found: Any) -> None:
            set_model_state_dict(value, found)

        return get_model_state_dict(value), fill_model
    if _is(value, "optim.Optimizer"):
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

        module = _module_of(key, value, modules)

        def fill_optimizer(found: Any) -> None:
            set_optimizer_state_dict(module, value, found)

        return get_optimizer_state_dict(module, value), fill_optimizer
    return value.state_dict(), value.load_state_dict


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
