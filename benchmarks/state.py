"""A state that is saved and loaded: arrays by atom and slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import ml_dtypes
import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

__all__ = ["Array", "TrainingState", "aligned", "filled"]

Array = NDArray[Any]

_ALIGNMENT: Final = 64


@dataclass(frozen=True)
class TrainingState:
    """Arrays by atom and slot; every array has an allocation of its own, as parameters do."""

    atoms: dict[str, dict[str, Array]]

    @cached_property
    def flat(self) -> dict[str, Array]:
        """The arrays under one name each."""
        return {
            f"{atom}.{slot}": array for atom, slots in self.atoms.items() for slot, array in slots.items()
        }

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The same memory as torch tensors."""
        return {name: _tensor(array) for name, array in self.flat.items()}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.flat.values())

    def blank(self) -> TrainingState:
        """The same shapes in other memory, already touched: a model that is about to be resumed."""
        return TrainingState(
            {
                atom: {slot: filled(array.shape, array.dtype, -1.0) for slot, array in slots.items()}
                for atom, slots in self.atoms.items()
            }
        )

    def erase(self) -> None:
        """Overwrite everything, so that what a load leaves out is seen."""
        for array in self.flat.values():
            array.fill(-1.0)

    def checksums(self) -> dict[str, int]:
        """CRC-32C of every array."""
        return {name: crc32c(array.reshape(-1).view(np.uint8).data) for name, array in self.flat.items()}

    def differing(self, other: TrainingState) -> str | None:
        """Name of the first array that is not equal to its counterpart."""
        for name, array in self.flat.items():
            if not np.array_equal(array, other.flat[name]):
                return name
        return None


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array without values that begins at 64 bytes, as those of torch and JAX do.

    Large ones of numpy begin 16 bytes behind a page. What lies at the beginning of a page, as segments do, is copied
    there at half the speed on recent processors: its place within the page is too near (sourceware.org/bugzilla/30994).
    """
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + nbytes].view(dtype).reshape(shape)


def filled(shape: tuple[int, ...], dtype: np.dtype[Any], values: Any) -> Array:
    """An array of these values, as `aligned` makes it."""
    array = aligned(shape, dtype)
    array[...] = values
    return array


def _tensor(array: Array) -> Any:
    import torch

    if array.dtype == ml_dtypes.bfloat16:  # which torch does not take from numpy
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
