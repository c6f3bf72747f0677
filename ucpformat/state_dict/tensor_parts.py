"""Tensor subclasses as the plain tensors that they are made of, and back (docs/torch.md, *Homes*).

A subclass that torch can compile tells its inner tensors and what else it is made of (``__tensor_flatten__``,
``__tensor_unflatten__``; torch/utils/_python_dispatch.py, PyTorch 2.13). The inner tensors become slots, the rest a
tagged value beside them, at the member `DESCRIPTION`. Nothing is pickled, and no class is ever looked up by import:
a state that is filled has its own, a new one is made only of classes that ``torch.serialization.add_safe_globals``
allows.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import error
from ucpformat.jsonio import dumps_canonical
from ucpformat.model.values import NamedValue, encode
from ucpformat.state_dict.objects import WITH_TORCH, extend
from ucpformat.state_dict.tensors.local_tensors import TensorLayout

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.values import TensorValue
    from ucpformat.state_dict.keys.paths import StatePath

__all__ = [
    "DESCRIPTION",
    "LiveTensor",
    "Taken",
    "allowed_types",
    "is_composite",
    "put_together",
    "restore_with",
    "taken_apart",
    "told",
]

DESCRIPTION: Final = "__tensor_flatten__"
_TYPE: Final = "torch.tensor_subclass"


@dataclasses.dataclass(frozen=True, slots=True)
class LiveTensor:
    """A plain tensor or DTensor of a state, at ``path``.

    ``whole`` is the path of the leaf: another where this is a part of it; ``part`` is what comes behind the name of
    that, with its dot. ``held`` is the layout of a part that its whole tells.
    """

    path: StatePath
    tensor: Any
    whole: StatePath
    part: str = ""
    held: TensorLayout | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What became of a tensor: itself or its parts, and by its path the description of one that was taken apart."""

    tensors: list[LiveTensor]
    descriptions: dict[StatePath, JsonValue]


def is_composite(tensor: object) -> bool:
    """Return whether this is a tensor subclass that tells what it is made of; a DTensor is none."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(tensor, torch.Tensor)
        and hasattr(tensor, "__tensor_flatten__")
        and not hasattr(tensor, "device_mesh")
    )


def taken_apart(path: StatePath, tensor: Any, layouts: Mapping[str, TensorLayout]) -> Taken:
    """Return the tensor itself, or its parts; of a DTensor of such local tensors, those of the local ones.

    A part that has the shape of its local tensor is held as the DTensor is; how any other is held, ``layouts`` says.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT`` for a description that is no plain data.
        MismatchError: ``UCP-E-MISMATCH`` for a part of a DTensor whose layout nothing tells.
    """
    local = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    if not is_composite(local):
        return Taken([LiveTensor(path, tensor, path)], {})
    found: list[LiveTensor] = []
    description = _apart(path, local, path, tensor, found)
    if local is not tensor:
        found = [_as_held(one, tensor, tuple(local.shape), layouts) for one in found]
    at = ".".join(map(str, path))
    return Taken(found, {(*path, DESCRIPTION): encode(NamedValue(_TYPE, description), at=at, extend=_extend)})


def _apart(
    path: StatePath, tensor: Any, whole: StatePath, outer: Any, found: list[LiveTensor]
) -> dict[str, object]:
    names, context = tensor.__tensor_flatten__()
    parts: dict[str, object] = {}
    for name in names:
        inner = getattr(tensor, name)
        parts[name] = None
        if is_composite(inner):
            parts[name] = _apart((*path, name), inner, whole, inner, found)
        else:
            own = (*path, name)
            part = "".join(f".{step}" for step in own[len(whole) :])
            found.append(LiveTensor(own, inner.detach(), whole, part))
    return {
        "type": _type_name(type(tensor)),
        "parts": parts,
        "context": context,
        "shape": list(map(int, outer.shape)),
        "stride": list(map(int, outer.stride())),
    }


def _as_held(
    part: LiveTensor, whole: Any, local_shape: tuple[int, ...], layouts: Mapping[str, TensorLayout]
) -> LiveTensor:
    name = ".".join(map(str, part.path))
    if name in layouts:
        return part
    if tuple(part.tensor.shape) != local_shape:
        raise error(
            "UCP-E-MISMATCH",
            f"a part of shape {list(part.tensor.shape)} of a DTensor whose local shape is {list(local_shape)}: "
            "nothing says how the ranks hold it; give its layout by layouts=",
            at=name,
        )
    from ucpformat.state_dict.tensors.torch_layouts import layout_of

    held = TensorLayout(layout_of(whole), tuple(map(int, whole.shape)))
    return dataclasses.replace(part, held=held)


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _extend(obj: object) -> NamedValue | TensorValue | None:
    """Return what contexts hold beside plain data: members of enumerations, dataclasses, named tuples."""
    if isinstance(obj, enum.Enum):
        return NamedValue(_type_name(type(obj)), obj.name)
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return NamedValue(
            _type_name(type(obj)),
            {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj) if field.init},
        )
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return NamedValue(_type_name(type(obj)), list(obj))
    return extend(obj)


def told(description: JsonValue) -> str:
    """Return a description in words, for messages."""
    whole = description.get("$object") if isinstance(description, dict) else None
    value = whole.get("value") if isinstance(whole, dict) else None
    if not isinstance(value, dict):
        return "a tensor in parts"
    context = dumps_canonical(value.get("context")).decode()
    return f"a {value.get('type')} of shape {value.get('shape')} with {context[:200]}"


def allowed_types() -> dict[str, Any]:
    """Return the classes that the user allows, by name, as ``torch.serialization.add_safe_globals`` took them."""
    import torch

    found = {}
    for entry in torch.serialization.get_safe_globals():
        if isinstance(entry, tuple):
            found[entry[1]] = entry[0]
        elif isinstance(entry, type):
            found[_type_name(entry)] = entry
    return found


def restore_with(allowed: Mapping[str, Any]) -> dict[str, Callable[[Any], object]]:
    """Return the restorers for `values.decode`: `WITH_TORCH`, and those of the allowed classes that contexts hold."""
    made: dict[str, Callable[[Any], object]] = {**WITH_TORCH}
    for name, kind in allowed.items():
        if isinstance(kind, type) and name not in made:
            restore = _maker(name, kind)
            if restore is not None:
                made[name] = restore
    return made


def _maker(name: str, kind: type[Any]) -> Callable[[Any], object] | None:
    if issubclass(kind, enum.Enum):
        return lambda member: kind.__members__[member]
    make: Callable[..., object] = kind
    if dataclasses.is_dataclass(kind):
        return lambda fields: NamedValue(name, fields) if _has_named(fields) else make(**fields)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda items: NamedValue(name, items) if _has_named(items) else make(*items)
    return None


def put_together(leaves: Mapping[StatePath, object], allowed: Mapping[str, Any]) -> dict[StatePath, object]:
    """Return the leaves of a state, those of one tensor subclass as that; as they are where a class is not allowed.

    Runs ``__tensor_unflatten__`` of classes that were allowed, and nothing else.
    """
    found = dict(leaves)
    for path, description in leaves.items():
        if (
            path[-1] != DESCRIPTION
            or not isinstance(description, NamedValue)
            or description.type != _TYPE
            or not isinstance(description.value, dict)
        ):
            continue
        whole = path[:-1]
        inner = {other[len(whole) :]: leaf for other, leaf in leaves.items() if other[: len(whole)] == whole}
        made = _made(inner, description.value, allowed)
        if made is not None:
            for part in inner:
                del found[(*whole, *part)]
            found[whole] = made
    return found


def _made(
    parts: Mapping[StatePath, object], description: Mapping[str, Any], allowed: Mapping[str, Any]
) -> object | None:
    kind: Any = allowed.get(description["type"])
    if not hasattr(kind, "__tensor_unflatten__") or _has_named(description["context"]):
        return None
    inner: dict[str, object] = {}
    for name, nested in description["parts"].items():
        below = {path[1:]: part for path, part in parts.items() if path[0] == name}
        found = below.get(()) if nested is None else _made(below, nested, allowed)
        if found is None:
            return None
        inner[name] = found
    shape, stride = tuple(description["shape"]), tuple(description["stride"])
    made: object = kind.__tensor_unflatten__(inner, description["context"], shape, stride)
    return made


def _has_named(context: object) -> bool:
    """Return whether something in it is of a class that was not allowed."""
    if isinstance(context, NamedValue):
        return True
    if isinstance(context, Mapping):
        return any(map(_has_named, context.values()))
    return isinstance(context, list | tuple | set | frozenset) and any(map(_has_named, context))
