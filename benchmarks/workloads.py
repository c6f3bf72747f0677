"""What is saved and loaded: states of the kinds that training has, the same on every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import ml_dtypes
import numpy as np

from benchmarks.state import Array, TrainingState, aligned, filled

__all__ = ["WORKLOADS", "gpt_shapes", "workload"]

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

_POSITIONS: Final = 1024
_EXPERTS_PER_LAYER: Final = 128
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def workload(name: str, nbytes: int) -> TrainingState:
    """The state ``name`` of about ``nbytes`` bytes, without zeros that could be left out; see `WORKLOADS`."""
    return WORKLOADS[name](nbytes)


def gpt_shapes(parameters: int) -> Shapes:
    """Parameter shapes of a GPT of about ``parameters`` elements.

    Seven tenths lie in the layers' matrices, the rest in the embedding.
    """
    width = next((width for width in (512, 256, 128) if parameters > 120 * width * width), 64)
    layers = max(1, int(0.7 * parameters) // (12 * width * width))
    rest = parameters - layers * (12 * width * width + 13 * width) - _POSITIONS * width - 2 * width
    shapes: Shapes = {
        "embed.token": (max(width, rest // width), width),
        "embed.position": (_POSITIONS, width),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for layer in range(layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(width).items()}
    return shapes


def _layer_shapes(width: int) -> Shapes:
    shapes: Shapes = {}
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


def _mixture_shapes(parameters: int) -> Shapes:
    """128 experts a layer, two matrices each, thousands in all: small matrices in great number."""
    width = 64
    expert = 2 * 4 * width * width
    layers = max(1, parameters // (expert * _EXPERTS_PER_LAYER))
    return {
        f"layers.{layer}.experts.{number}.{name}": shape
        for layer in range(layers)
        for number in range(_EXPERTS_PER_LAYER)
        for name, shape in (("up", (4 * width, width)), ("down", (width, 4 * width)))
    }


class _Values:
    """Random numbers in [0.5, 1.5)."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(16)

    def float32(self, shape: Shape) -> Array:
        array = aligned(shape, np.dtype(np.float32))
        self._random.random(dtype=np.float32, out=array)  # in place: one tensor may fill most of the memory
        array += np.float32(0.5)
        return array

    def bfloat16(self, shape: Shape) -> Array:
        return filled(shape, np.dtype(ml_dtypes.bfloat16), self.float32(shape))


def _adam(shapes: Shapes) -> TrainingState:
    """In fp32: values, two moments, and a 0-d step for each parameter."""
    values = _Values()
    return TrainingState(
        {
            name: {slot: values.float32(shape) for slot in ("value", *_MOMENTS)}
            | {"step": np.array(1000.0, np.float32)}
            for name, shape in shapes.items()
        }
    )


def _mixed(shapes: Shapes) -> TrainingState:
    """Values in bf16; their master copies and two moments in fp32."""
    values = _Values()
    return TrainingState(
        {
            name: {slot: values.float32(shape) for slot in ("master", *_MOMENTS)}
            | {"value": values.bfloat16(shape)}
            for name, shape in shapes.items()
        }
    )


def _single(nbytes: int) -> TrainingState:
    """One tensor, of rows of 16 KiB."""
    return TrainingState({"weight": {"value": _Values().float32((max(1, nbytes // 16384), 4096))}})


def _small(count: int) -> Callable[[int], TrainingState]:
    def state(nbytes: int) -> TrainingState:
        del nbytes  # the number of tensors is what matters: 1 KiB each
        values = _Values()
        return TrainingState(
            {f"layers.{i // 100}.{i % 100}.weight": {"value": values.float32((256,))} for i in range(count)}
        )

    return state


WORKLOADS: Final[dict[str, Callable[[int], TrainingState]]] = {
    "gpt": lambda nbytes: _adam(gpt_shapes(nbytes // 12)),
    "gpt-mixed": lambda nbytes: _mixed(gpt_shapes(nbytes // 14)),
    "moe": lambda nbytes: _adam(_mixture_shapes(nbytes // 12)),
    "single": _single,
    "small-10k": _small(10_000),
    "small-100k": _small(100_000),
}
"""By name; each takes the bytes that the state should have, which those of many small tensors leave alone."""
