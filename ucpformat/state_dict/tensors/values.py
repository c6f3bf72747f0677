"""Live tensors of the running process: numpy arrays and torch tensors.

Torch is used where the caller has imported it, and imported only where torch tensors are asked for.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.model.dtype import dtype, dtype_of
from ucpformat.storage.host_memory import array_view
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "destination_of",
    "elements_of",
    "is_tensor",
    "same_memory",
    "tensor_dtype",
    "to_torch",
]


_META: Final = (
    "a tensor on the meta device has no elements; give it memory first, a module by to_empty(device='cpu'), "
    "and before a save the values as well"
)


def _torch() -> Any:
    return sys.modules.get("torch")


def is_tensor(obj: object) -> bool:
    """Whether ``obj`` is a numpy array (not a scalar) or a torch tensor."""
    torch = _torch()
    return isinstance(obj, np.ndarray) or (torch is not None and isinstance(obj, torch.Tensor))


def tensor_dtype(tensor: Any, *, at: str) -> str:
    """Name of the data type of a tensor in this format (SPEC 11.2).

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for types without one.
        MismatchError: ``UCP-E-MISMATCH`` for a tensor that is not dense memory of one process.
    """
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise error("UCP-E-MISMATCH", "a masked array is two tensors; give data and mask apart", at=at)
        return dtype_of(tensor.dtype, at=at).name
    torch = _torch()
    if tensor.layout != torch.strided or tensor.is_nested:
        what = "a nested" if tensor.is_nested else f"a {str(tensor.layout).removeprefix('torch.')}"
        remedy = "unbind()" if tensor.is_nested else "to_dense(), or its indices and values"
        raise error("UCP-E-MISMATCH", f"{what} tensor has no dense memory; give {remedy}", at=at)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise error(
            "UCP-E-MISMATCH",
            f"a {type(tensor).__name__} is not a dense tensor of one process; gather it first (full_tensor())",
            at=at,
        )
    if tensor.device.type == "meta":
        raise error("UCP-E-MISMATCH", _META, at=at)
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        raise error("UCP-E-DTYPE", f"{tensor.dtype} has no data type in this format", at=at)
    return name


def _require_host(tensor: Any, at: str) -> None:
    if not isinstance(tensor, np.ndarray) and tensor.device.type != "cpu":
        raise error("UCP-E-MISMATCH", f"the tensor lies on {tensor.device}; move it to the CPU first", at=at)


def elements_of(tensor: Any, *, at: str) -> NDArray[np.generic]:
    """The elements of a tensor as a numpy array of the format's type, a view wherever memory holds them so.

    Raises as `tensor_dtype`, and ``UCP-E-MISMATCH`` for a tensor on a device.
    """
    kind = dtype(tensor_dtype(tensor, at=at))
    _require_host(tensor, at)
    if isinstance(tensor, np.ndarray):
        return np.asarray(tensor).astype(kind.numpy, copy=False)
    return array_view(tensor.detach().resolve_conj().resolve_neg(), kind, at=at)


def destination_of(tensor: Any, *, at: str) -> NDArray[np.generic]:
    """A numpy view of a tensor's memory, to be written to.

    Raises as `elements_of`, and ``UCP-E-MISMATCH`` for memory that cannot take the elements as they are.
    """
    kind = dtype(tensor_dtype(tensor, at=at))
    _require_host(tensor, at)
    if not isinstance(tensor, np.ndarray) and (tensor.is_conj() or tensor.is_neg()):
        raise error("UCP-E-MISMATCH", "the tensor is a conjugate or negative view of its memory", at=at)
    view = array_view(tensor, kind, at=at)
    if view.size and any(
        step == 0 and extent > 1 for step, extent in zip(view.strides, view.shape, strict=True)
    ):
        raise error("UCP-E-MISMATCH", "several elements share one place in memory; give a clone()", at=at)
    if view.dtype != kind.numpy:
        raise error(
            "UCP-E-MISMATCH", f"the array has the byte order of {view.dtype}, not this machine's", at=at
        )
    return view


def same_memory(array: NDArray[np.generic]) -> tuple[object, ...] | None:
    """A key that tensors share when they are the same elements of the same memory; None if they have none."""
    if array.size == 0:
        return None
    return (array.__array_interface__["data"][0], array.dtype, array.shape, array.strides)


def to_torch(array: NDArray[np.generic], name: str) -> Any:
    """A torch tensor that shares the memory of a fresh, contiguous array of the data type ``name``.

    Raises:
        UnsupportedError: ``UCP-E-DTYPE`` for types that torch lacks.
    """
    import torch

    kind = getattr(torch, name, None) if name in TORCH_DTYPES else None
    if kind is None:
        raise error("UCP-E-DTYPE", f"torch has no data type {name}; load numpy arrays instead")
    if array.size == 0:
        return torch.empty(array.shape, dtype=kind)
    return torch.from_numpy(array.reshape(-1).view(np.uint8)).view(kind).reshape(array.shape)
