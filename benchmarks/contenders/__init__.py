"""Everybody who takes part, in the order of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from benchmarks.contenders.ours import Ours, OursSlotBySlot, OursUnverified
from benchmarks.contenders.raw import RawLimit
from benchmarks.contenders.torch_files import Safetensors, TorchDcp, TorchSave
from benchmarks.contenders.zarr_libraries import TensorStore, ZarrPython

if TYPE_CHECKING:
    from benchmarks.contenders.base import Contender

__all__ = ["CONTENDERS"]

CONTENDERS: Final[tuple[Contender, ...]] = (
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
)
