"""What the reader must return for an object that torch pickled: the same, with stand-ins for foreign types."""

from __future__ import annotations

import pathlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch

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


def stand_in(value: Any) -> Any:
    """Return ``value`` as plain data."""
    simple: dict[type, Callable[[Any], Any]] = {
        torch.Size: TorchSize,
        torch.dtype: lambda x: TorchDtype(str(x).removeprefix("torch.")),
        torch.device: lambda x: TorchDevice(str(x)),
        torch.layout: lambda x: TorchLayout(str(x)),
    }
    if type(value) in simple:
        return simple[type(value)](value)
    if isinstance(value, torch.Tensor):
        data = (
            value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if value.numel()
            else b""
        )
        return TensorValue(str(value.dtype).removeprefix("torch."), tuple(value.shape), data)
    if isinstance(value, np.dtype):
        return NumpyDtype(value.str)
    if isinstance(value, np.ndarray):
        return NumpyArray(value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return NumpyScalar(value.dtype.str, value.tobytes())
    if isinstance(value, pathlib.PurePath):
        return PathValue(type(value).__name__, str(value))
    if isinstance(value, defaultdict):
        table = DefaultDict(value.default_factory.__name__ if value.default_factory else None)
        table.update({key: stand_in(item) for key, item in value.items()})
        return table
    if isinstance(value, Counter):
        return value
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((stand_in(key), stand_in(item)) for key, item in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(stand_in(item) for item in value)
    return value


def spelled(value: object) -> str:
    """``repr``, but for the order of sets, which is that of the hashes of the day: exact in types, NaN and -0.0."""
    name = type(value).__name__
    if type(value) in (set, frozenset):
        return f"{name}({sorted(map(spelled, cast('set[object]', value)))})"
    if type(value) in (tuple, list):
        return f"{name}({[spelled(item) for item in cast('list[object]', value)]})"
    if type(value) in (dict, OrderedDict):
        items = cast("dict[object, object]", value).items()
        return f"{name}({[(spelled(key), spelled(item)) for key, item in items]})"
    return repr(value)
