"""Memory of this process: views of arrays, scratch of each thread, and how much may be decoded at once (SPEC 19)."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ucpformat.geometry import Box
    from ucpformat.model.dtype import DType

__all__ = [
    "ALIGNMENT",
    "DECODED_BYTES",
    "DecodingRoom",
    "Scratch",
    "Selection",
    "aligned",
    "array_view",
    "flat_bytes",
    "selection",
]

Selection = tuple[slice | EllipsisType, ...]

_CASTABLE: Final = frozenset("?bBhHiIlLqQfd")  # of what numpy has built in, those that memoryview can cast


def array_view(tensor: object, expected: DType, *, at: str) -> NDArray[np.generic]:
    """Return ``tensor`` as a numpy array that shares its memory.

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
    """Return the bytes of an array in C order, which is not copied."""
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


ALIGNMENT: Final = 4096
"""Bytes: what devices take data from without a copy."""
_KEPT_BYTES: Final = 1 << 23


def aligned(memory: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    """Return ``nbytes`` bytes from a multiple of `ALIGNMENT` on; the run has as many more to spare."""
    return memory[-memory.ctypes.data % ALIGNMENT :][:nbytes]


class Scratch:
    """Memory of each thread's own, aligned; up to ``kept_bytes`` of it are kept until the thread ends."""

    def __init__(self, kept_bytes: int = _KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._own = threading.local()

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        """Return at least so many bytes, with anything in them, until this thread asks again."""
        found: NDArray[np.uint8] | None = getattr(self._own, "memory", None)
        if found is None or found.nbytes < nbytes:
            found = aligned(np.empty(nbytes + ALIGNMENT, np.uint8), nbytes)
            if nbytes <= self._kept_bytes:
                self._own.memory = found
        return found


DECODED_BYTES: Final = 256 << 20
"""Of all chunks together that are decoded at a time, unless one alone has more."""


class DecodingRoom:
    """Lets so many bytes be taken at a time, or any number of them by one taker alone."""

    def __init__(self, nbytes: int = DECODED_BYTES) -> None:
        self._nbytes = nbytes
        self._taken = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, nbytes: int) -> Iterator[None]:
        """Have ``nbytes`` for as long as the context lasts; wait until they are there. Not to be nested."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + nbytes <= self._nbytes)
            self._taken += nbytes
        try:
            yield
        finally:
            with self._changed:
                self._taken -= nbytes
                self._changed.notify_all()


def selection(part: Box, origin: Box) -> Selection:
    """Return the index that selects ``part`` of an array that holds ``origin``; the result is always an array."""
    local = part.relative_to(origin)
    return (*(slice(start, stop) for start, stop in zip(local.offset, local.stop, strict=True)), ...)
