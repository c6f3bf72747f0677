"""The state that is saved and loaded: a GPT with Adam's moments, in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TrainingState", "gpt_shapes", "training_state"]

Shape = tuple[int, ...]

_MOMENTS = ("exp_avg", "exp_avg_sq")
_SLOTS = ("value", *_MOMENTS)
_POSITIONS = 1024


@dataclass(frozen=True)
class TrainingState:
    """Arrays by atom and slot; every array has an allocation of its own, as parameters do."""

    atoms: dict[str, dict[str, NDArray[np.float32]]]

    @cached_property
    def flat(self) -> dict[str, NDArray[np.float32]]:
        """The arrays under one name each."""
        return {
            f"{atom}.{slot}": array for atom, slots in self.atoms.items() for slot, array in slots.items()
        }

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The same memory as torch tensors."""
        import torch

        return {name: torch.from_numpy(array) for name, array in self.flat.items()}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.flat.values())

    def blank(self) -> TrainingState:
        """The same shapes in other memory, already touched: a model that is about to be resumed."""
        return TrainingState(
            {
                atom: {slot: np.full_like(array, -1.0) for slot, array in slots.items()}
                for atom, slots in self.atoms.items()
            }
        )

    def erase(self) -> None:
        """Overwrite everything, so that what a load leaves out is seen."""
        for array in self.flat.values():
            array.fill(-1.0)

    def differing(self, other: TrainingState) -> str | None:
        """Name of the first array that is not equal to its counterpart."""
        for name, array in self.flat.items():
            if not np.array_equal(array, other.flat[name]):
                return name
        return None


def gpt_shapes(nbytes: int) -> dict[str, Shape]:
    """Parameter shapes of a GPT whose fp32 values and two moments take about ``nbytes`` bytes.

    Seven tenths lie in the layers' matrices, the rest in the embedding.
    """
    parameters = nbytes // (4 * len(_SLOTS))
    width = next((width for width in (512, 256, 128) if parameters > 120 * width * width), 64)
    layers = max(1, int(0.7 * parameters) // (12 * width * width))
    rest = parameters - layers * (12 * width * width + 13 * width) - _POSITIONS * width - 2 * width
    shapes: dict[str, Shape] = {
        "embed.token": (max(width, rest // width), width),
        "embed.position": (_POSITIONS, width),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(width).items()}
    return shapes


def _layer_shapes(width: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, rows, columns in (
        ("attention.qkv", 3 * width, width),
        ("attention.projection", width, width),
        ("mlp.up", 4 * width, width),
        ("mlp.down", width, 4 * width),
    ):
        shapes |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    for name in ("norm_1", "norm_2"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes


def training_state(nbytes: int) -> TrainingState:
    """A state of about ``nbytes`` bytes, the same on every run, without zeros that could be left out."""
    random = np.random.default_rng(16)
    atoms = {}
    for name, shape in gpt_shapes(nbytes).items():
        slots = {slot: random.random(shape, dtype=np.float32) + np.float32(0.5) for slot in _SLOTS}
        slots["step"] = np.array(1000.0, np.float32)
        atoms[name] = slots
    return TrainingState(atoms)
