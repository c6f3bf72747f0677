"""Everybody who takes part, of those that are installed, in the order of the tables."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from benchmarks.contenders.orbax import Orbax
from benchmarks.contenders.ours import Ours, OursSlotBySlot, OursUnverified
from benchmarks.contenders.raw import RawLimit
from benchmarks.contenders.torch_files import Safetensors, TorchDcp, TorchSave
from benchmarks.contenders.zarr_libraries import TensorStore, ZarrPython

if TYPE_CHECKING:
    from benchmarks.contenders.base import Contender

__all__ = ["CONTENDERS"]

_ALL: Final[tuple[Contender, ...]] = (
    RawLimit.bare(),
    RawLimit.checked(),
    Ours("packed"),
    OursUnverified("packed"),
    OursSlotBySlot("packed"),
    Ours("plain"),
    OursUnverified("plain"),
    TorchDcp(),
    Safetensors(),
    TorchSave(),
    TensorStore(),
    ZarrPython(),
    Orbax(),
)
_NEEDS: Final = {
    "torch-dcp": "torch",
    "torch-save": "torch",
    "safetensors": "safetensors",
    "tensorstore-zarr3": "tensorstore",
    "zarr-python": "zarr",
    "orbax": "orbax",
}
CONTENDERS: Final = tuple(one for one in _ALL if one.name not in _NEEDS or find_spec(_NEEDS[one.name]))
