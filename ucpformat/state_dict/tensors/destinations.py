"""Memory to write the elements of live tensors to: their own, or staging that is copied into them afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.state_dict.tensors.local_tensors import destination_of, to_torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.state_dict.tensors.local_tensors import LocalTensor

__all__ = ["copy_into", "own_memory"]


def own_memory(tensor: LocalTensor, kind: str, *, at: str) -> NDArray[np.generic] | None:
    """Return the tensor's own memory, where elements of the type ``kind`` can be written to it as they are, densely."""
    if not tensor.on_host or tensor.dtype != kind:
        return None
    memory = destination_of(tensor.local, at=at)
    return memory if memory.flags.c_contiguous else None


def copy_into(local: Any, array: NDArray[np.generic], kind: str) -> None:
    """Copy an array of the type ``kind`` into a numpy array or a torch tensor of its shape, on any device."""
    if isinstance(local, np.ndarray):
        local[...] = array.astype(local.dtype, copy=False)
        return
    import torch

    with torch.no_grad():
        local.copy_(to_torch(array, kind))
