"""Python objects of a DCP checkpoint as tagged values, and back (SPEC section 15.1).

``torch.Size``, ``torch.dtype``, ``torch.device``, ``torch.layout``, ``numpy.dtype``, ``collections.defaultdict``,
``collections.Counter``, ``builtins.bytearray``, ``builtins.range`` and ``datetime.timezone`` are named values;
all else has a tag of its own.
"""

from __future__ import annotations

import datetime
import pathlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.jsonio import JsonValue
from ucpformat.model import values
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.revive import FACTORIES
from ucpformat.tensor_files.stand_ins import (
    DefaultDict,
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PathValue,
    TensorValue,
    TorchDevice,
    TorchDtype,
    TorchLayout,
    TorchSize,
)

__all__ = ["RESTORE", "decode", "default_dict", "encode", "foreign_type", "has_own_name"]

_PATHS: Final = {"PosixPath": pathlib.PurePosixPath, "WindowsPath": pathlib.PureWindowsPath}


def encode(obj: object, *, at: str) -> JsonValue:
    """Return a tagged value of what `unpickle` returned.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT``, naming the location and the type.
    """
    return values.encode(_plain(obj), at=at)


def decode(value: JsonValue, *, at: str) -> object:
    """Return what `revive` turns into torch's objects.

    Raises:
        InvalidCheckpointError: ``UCP-E-VALUE`` for a malformed tag.
    """
    return values.decode(value, at=at, restore=RESTORE)


def foreign_type(value: object) -> str | None:
    """Return the type of the first value within a decoded one that torch has no class for, if there is any."""
    if isinstance(value, values.NamedValue):
        return value.type
    if isinstance(value, Mapping):
        return next((found for pair in value.items() for item in pair if (found := foreign_type(item))), None)
    if isinstance(value, list | tuple | set | frozenset):
        return next((found for item in value if (found := foreign_type(item))), None)
    return None


def _plain(obj: object) -> object:
    """Return ``obj`` with stand-ins replaced by what `values.encode` knows. Every object is a finite tree."""
    make = _PLAIN.get(type(obj))
    if make is not None:
        return make(obj)
    if type(obj) in (list, tuple, set, frozenset):
        return type(obj)(map(_plain, obj))  # type: ignore[call-arg, call-overload]
    if type(obj) in (dict, OrderedDict):
        return type(obj)((_plain(key), _plain(item)) for key, item in obj.items())  # type: ignore[call-arg, attr-defined]
    return obj


def _array(obj: NumpyArray) -> object:
    return np.frombuffer(obj.data, np.dtype(obj.dtype)).reshape(obj.shape)


def _path(obj: PathValue) -> object:
    # Pure paths stand for concrete ones that this system may not have; which is kept in the name.
    kind = obj.kind.removeprefix("Pure")
    pure = _PATHS[kind](obj.text)
    return pure if obj.kind.startswith("Pure") else values.NamedValue(f"torch_dcp.{kind}", obj.text)


def _zone(obj: datetime.timezone) -> values.NamedValue:
    return values.NamedValue("datetime.timezone", obj.utcoffset(None))


def _refuse_instance(obj: Instance) -> object:
    raise error(
        "UCP-E-OBJECT",
        f"an {obj.kind} that is not an object of its own, or has members, does not belong here",
    )


_PLAIN: Final[dict[type, Callable[[Any], object]]] = {
    TorchSize: lambda obj: values.NamedValue("torch.Size", list(obj)),
    TorchDtype: lambda obj: values.NamedValue("torch.dtype", obj.name),
    TorchDevice: lambda obj: values.NamedValue("torch.device", obj.name),
    TorchLayout: lambda obj: values.NamedValue("torch.layout", obj.name),
    TensorValue: lambda obj: values.TensorValue(obj.dtype, obj.shape, obj.data),
    NumpyDtype: lambda obj: values.NamedValue("numpy.dtype", obj.name),
    NumpyArray: _array,
    NumpyScalar: lambda obj: np.frombuffer(obj.data, np.dtype(obj.dtype))[0],
    PathValue: _path,
    DefaultDict: lambda obj: values.NamedValue("collections.defaultdict", [obj.factory, _plain(dict(obj))]),
    Counter: lambda obj: values.NamedValue("collections.Counter", _plain(dict(obj))),
    values.NamedValue: lambda obj: values.NamedValue(obj.type, _plain(obj.value)),
    values.PerRankValues: lambda obj: replace(obj, entries=tuple(map(_plain, obj.entries))),
    bytearray: lambda obj: values.NamedValue("builtins.bytearray", bytes(obj)),
    Instance: _refuse_instance,
    range: lambda obj: values.NamedValue("builtins.range", [obj.start, obj.stop, obj.step]),
    datetime.timezone: lambda obj: obj if has_own_name(obj) else _zone(obj),
}


def has_own_name(zone: datetime.timezone) -> bool:
    """Return whether a time zone is more than its offset."""
    return repr(zone) != repr(datetime.timezone(zone.utcoffset(None)))


def default_dict(content: Any) -> DefaultDict:
    """Return the stand-in that ``[factory, members]`` describes; TypeError or ValueError for anything else."""
    factory, members = content
    if factory not in FACTORIES or type(members) is not dict:
        raise ValueError("expected are the name of a builtin type, or null, and a dictionary")
    restored = DefaultDict(factory)
    restored.update(members)
    return restored


def _of(kind: type, make: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return ``make``, for content of exactly the type ``kind``: a number would make a bytearray of that length."""

    def restore(content: Any) -> object:
        if type(content) is not kind:
            raise TypeError(f"expected is a {kind.__name__}")
        return make(content)

    return restore


def _numpy_dtype(text: str) -> object:
    if np.dtype(text).str != text:
        raise ValueError("expected is an array-protocol string")
    return NumpyDtype(text)


def _size(extents: list[object]) -> object:
    if not all(type(extent) is int for extent in extents):
        raise TypeError("extents are integers")
    return TorchSize(extents)  # type: ignore[arg-type]


RESTORE: Final[Mapping[str, Callable[[Any], object]]] = {
    "$tensor": lambda content: TensorValue(content.dtype, content.shape, content.data),
    "torch.Size": _of(list, _size),
    "torch.dtype": _of(str, TorchDtype),
    "torch.device": _of(str, TorchDevice),
    "torch.layout": _of(str, TorchLayout),
    "numpy.dtype": _of(str, _numpy_dtype),
    "torch_dcp.PosixPath": _of(str, lambda text: PathValue("PosixPath", text)),
    "torch_dcp.WindowsPath": _of(str, lambda text: PathValue("WindowsPath", text)),
    "collections.defaultdict": default_dict,
    "collections.Counter": _of(dict, Counter),
    "builtins.bytearray": _of(bytes, bytearray),
    "builtins.range": _of(list, lambda content: range(*content)),
    "datetime.timezone": datetime.timezone,
}
"""For `values.decode`: stand-ins by the names of their types."""
