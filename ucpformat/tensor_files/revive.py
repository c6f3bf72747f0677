"""Turning stand-ins back into what they stand for (needs torch)."""

from __future__ import annotations

import datetime
import io
import pathlib
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ucpformat.errors import error
from ucpformat.tensor_files.stand_ins import (
    TORCH_DTYPES,
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

if TYPE_CHECKING:
    import torch

__all__ = ["FACTORIES", "revive", "tensor_from_bytes"]

FACTORIES: Final[dict[str | None, type[Any] | None]] = {None: None} | {
    kind.__name__: kind for kind in (bool, bytes, complex, dict, float, int, list, set, str, tuple)
}
"""What may make the defaults of a ``defaultdict``, by name."""

_PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, bytearray, range, type(None)),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    *(np.ndarray, np.generic, pathlib.PurePath, io.BytesIO),
)
_TORCH_NAMES: Final = {name: torch_name for torch_name, (name, _) in TORCH_DTYPES.items()}


def tensor_from_bytes(data: npt.NDArray[np.uint8], torch_name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor of torch's type ``torch_name`` over ``data`` (little-endian, C order), not a copy."""
    import torch

    dtype = getattr(torch, torch_name)
    if data.size == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(shape)


def revive(value: object, key: str) -> object:
    """Return ``value`` with every stand-in of `objects` replaced. ``key`` is named in errors.

    ``value`` must be a finite tree (see `object_tree.check_tree`). A Windows path becomes a pure one on other
    systems. Raises ``UCP-E-OBJECT`` for what is neither plain nor a stand-in.
    """
    if isinstance(value, TorchSize | TorchDtype | TorchDevice | TorchLayout | TensorValue):
        return _revive_torch(value)
    if isinstance(value, NumpyDtype | NumpyArray | NumpyScalar):
        return _revive_numpy(value)
    if isinstance(value, PathValue):
        return _revive_path(value)
    if type(value) in (tuple, list, set, frozenset):
        items = (revive(item, key) for item in value)  # type: ignore[attr-defined]
        return type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, dict):
        pairs = ((revive(name, key), revive(item, key)) for name, item in value.items())
        if isinstance(value, DefaultDict):
            return defaultdict(FACTORIES[value.factory], pairs)
        if type(value) in (dict, OrderedDict, Counter):
            return type(value)(dict(pairs))
    if isinstance(value, _PLAIN):
        return value
    raise error(
        "UCP-E-OBJECT",
        f"{key!r} holds a {type(value).__name__}, which cannot be written for torch; leave it out with --drop",
    )


def _revive_torch(value: TorchSize | TorchDtype | TorchDevice | TorchLayout | TensorValue) -> object:
    import torch

    if isinstance(value, TorchSize):
        return torch.Size(value)
    if isinstance(value, TensorValue):
        data = np.frombuffer(value.data, dtype=np.uint8).copy()
        if value.dtype not in _TORCH_NAMES:
            raise error("UCP-E-OBJECT", f"torch has no data type {value.dtype}")
        return tensor_from_bytes(data, _TORCH_NAMES[value.dtype], value.shape)
    if isinstance(value, TorchDevice):
        try:
            return torch.device(value.name)
        except RuntimeError:
            raise error("UCP-E-OBJECT", f"this torch has no device {value.name!r}") from None
    found = getattr(torch, value.name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype | torch.layout):
        raise error("UCP-E-OBJECT", f"this torch has no {value.name}")
    return found


def _revive_numpy(value: NumpyDtype | NumpyArray | NumpyScalar) -> object:
    if isinstance(value, NumpyDtype):
        return np.dtype(value.name)
    if isinstance(value, NumpyScalar):
        return np.frombuffer(value.data, dtype=value.dtype)[0]
    return np.frombuffer(value.data, dtype=value.dtype).reshape(value.shape).copy()


def _revive_path(value: PathValue) -> object:
    if value.kind not in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
        raise error("UCP-E-OBJECT", f"{value.kind} is not a path")
    windows = "Windows" in value.kind
    native = value.kind == type(pathlib.Path()).__name__
    if native:
        return pathlib.Path(value.text)
    return pathlib.PureWindowsPath(value.text) if windows else pathlib.PurePosixPath(value.text)
