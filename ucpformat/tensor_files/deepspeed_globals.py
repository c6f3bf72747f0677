"""The allow-list of DeepSpeed's pickles: its own classes come in as inert data, whatever they would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = ["DEEPSPEED_GLOBALS", "instance_state"]

# Where DeepSpeed (0.3 to 0.19) keeps them. Their attributes are numbers and strings.
_CLASSES: Final = {
    "deepspeed.runtime.fp16.loss_scaler": ("LossScaler", "DynamicLossScaler"),
    "deepspeed.utils.tensor_fragment": ("fragment_address",),
    "deepspeed.checkpoint.universal_checkpoint": ("SubparamShape",),
    "deepspeed.checkpoint": ("SubparamShape",),
    "argparse": ("Namespace",),
}
_ENUMS: Final = {
    "deepspeed.runtime.zero.config": ("ZeroStageEnum",),
    "deepspeed.runtime.zero.offload_config": ("OffloadDeviceEnum",),
}
_TENSOR_TYPES: Final = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


def _inert(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        if arguments:
            raise ValueError(f"{kind} takes no arguments")
        return Instance(kind)

    return Constructor(kind, call)


def _enum(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        (value,) = arguments
        if type(value) not in (int, str):
            raise ValueError(f"{kind} is a number or a string")
        return value

    return Constructor(kind, call)


def _tensor_type(arguments: tuple[Any, ...]) -> object:
    raise ValueError("this type may be named but not called")


def _typed_tensor(arguments: tuple[Any, ...]) -> object:
    """Stand in for ``torch._tensor._rebuild_from_type_v2``: a tensor with attributes, which are dropped."""
    rebuild, kind, parts, _ = arguments
    if not isinstance(rebuild, Constructor) or not rebuild.name.startswith("_rebuild_"):
        raise ValueError("a tensor that is built by something else than torch's functions")
    if not isinstance(kind, Constructor) or kind.call is not _tensor_type:
        raise ValueError("a tensor of an unknown type")
    if not isinstance(parts, tuple):
        raise ValueError("expected arguments")
    return rebuild.call(parts)


def _parameter_with_state(arguments: tuple[Any, ...]) -> object:
    data, *_ = arguments
    return data


def _globals() -> dict[tuple[str, str], object]:
    table: dict[tuple[str, str], object] = {
        (module, name): _inert(f"{module}.{name}") for module, names in _CLASSES.items() for name in names
    }
    table |= {(module, name): _enum(name) for module, names in _ENUMS.items() for name in names}
    table |= {name: Constructor(name[1], _tensor_type) for name in _TENSOR_TYPES}
    table["torch._tensor", "_rebuild_from_type_v2"] = Constructor("_rebuild_from_type_v2", _typed_tensor)
    table["torch._utils", "_rebuild_parameter_with_state"] = Constructor(
        "_rebuild_parameter_with_state", _parameter_with_state
    )
    return table


DEEPSPEED_GLOBALS: Final[Globals] = _globals()
"""What a file of DeepSpeed's may name beyond plain data and torch's tensors."""


def instance_state(instance: Instance) -> dict[str, Any]:
    """Return the attributes of an inert object."""
    return dict(instance.state) if isinstance(instance.state, Mapping) else {}
