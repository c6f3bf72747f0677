"""numpy views of other libraries' memory, so that bytes are read straight into a caller's tensor.

Torch is never imported here: a caller who passes a torch tensor has imported it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.model.dtype import DType

__all__ = ["array_view", "flat_bytes"]

_CASTABLE: Final = frozenset("?bBhHiIlLqQfd")  # of what numpy has built in, those that memoryview can cast


def array_view(tensor: object, expected: DType, *, at: str) -> NDArray[np.generic]:
    """``tensor`` as a numpy array that shares its memory.

    ``tensor`` is a numpy array, a CPU torch tensor of any data type that the format knows, or anything whose
    ``__array__`` shares memory. ``expected`` is the data type of the slot, which numpy alone may not know.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for another data type, or memory that cannot be shared and written.
    """
    if type(tensor) is np.ndarray and tensor.flags.writeable:
        return tensor
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _torch_view(torch, tensor, expected, at)
    view = np.asarray(tensor)
    if not view.flags.writeable:
        raise error("UCP-E-MISMATCH", "the destination is read-only", at=at)
    # What makes a new array each time would lose the bytes without a word.
    if view.ctypes.data != np.asarray(tensor).ctypes.data:
        raise error("UCP-E-MISMATCH", f"{type(tensor).__name__} does not share its memory", at=at)
    return view


def flat_bytes(array: NDArray[np.generic]) -> memoryview:
    """The bytes of an array in C order, which is not copied."""
    if array.dtype.isbuiltin == 1 and array.dtype.char in _CASTABLE and array.size and array.ndim:
        return array.data.cast("B")  # a third of the time that numpy takes
    return array.reshape(-1).view(np.uint8).data


def _torch_view(torch: Any, tensor: Any, expected: DType, at: str) -> NDArray[np.generic]:
    if tensor.device.type != "cpu":
        raise error("UCP-E-MISMATCH", f"the destination lies on {tensor.device}, not in CPU memory", at=at)
    if str(tensor.dtype).removeprefix("torch.") != expected.name:
        raise error("UCP-E-MISMATCH", f"the destination is {tensor.dtype}, needed is {expected.name}", at=at)
    tensor = tensor.detach()
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}.get(expected.item_bytes)
    # numpy does not know torch's narrow types, but it knows integers of their size.
    plain = tensor.view(bits) if bits is not None else tensor
    return cast("NDArray[np.generic]", plain.numpy().view(expected.numpy))
