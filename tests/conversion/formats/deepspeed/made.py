"""Small universal checkpoints of a training run, as an importer would make them, without any framework."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Shapes = Mapping[str, tuple[int, ...]]

SHAPES: Shapes = {
    "embed.weight": (11, 3),
    "up.weight": (5, 7),
    "up.bias": (5,),
    "gain": (),
    "norm": (4,),
}
GROUPS = (("embed.weight", "up.weight"), ("norm", "up.bias", "gain"))


def make_checkpoint(
    path: Path,
    *,
    shapes: Shapes = SHAPES,
    groups: Sequence[Sequence[str]] = GROUPS,
    kind: str = "bfloat16",
    states: Sequence[str] = ("exp_avg", "exp_avg_sq"),
    steps: Mapping[str, float] | None = None,
    values: Mapping[str, object] | None = None,
    roles: bool = True,
    salts: Mapping[str, int] | None = None,
    aliases: Mapping[str, str | tuple[str, ...]] | None = None,
    prefix: str = "",
) -> Path:
    """Parameters in groups with masters and states, a tied name, a frozen parameter, buffers, values."""
    slots: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
    low = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    for name, shape in shapes.items():
        generator = np.random.default_rng(zlib.crc32(name.encode()) + (salts or {}).get(name, 0))
        master = generator.standard_normal(shape).astype(np.float32).reshape(shape)
        slots[name] = {"value": master.astype(low)}
        if kind != "float32":
            slots[name]["master"] = master
        for state in states:
            slots[name][state] = generator.standard_normal(shape).astype(np.float32).reshape(shape)
        if states:
            slots[name]["step"] = np.array((steps or {}).get(name, 5.0), np.float32)
    generator = np.random.default_rng(3)
    slots[f"{prefix}fixed"] = {"value": generator.standard_normal((3, 5)).astype(low)}
    slots[f"{prefix}table"] = {"value": generator.standard_normal((2, 2)).astype(np.float32)}
    slots[f"{prefix}count"] = {"value": np.array(7)}
    known = {"fixed": "frozen", "table": "buffer", "count": "buffer"} if roles else {}
    known = {f"{prefix}{name}": role for name, role in known.items()}
    tied: Mapping[str, str | tuple[str, ...]] = (
        {"embed.weight": "head.weight"} if aliases is None else aliases
    )
    names = {np.dtype(ml_dtypes.bfloat16): "bfloat16"}
    atoms = [
        AtomSpec(
            name,
            {
                slot: SlotSpec(names.get(data.dtype, str(data.dtype)), data.shape)
                for slot, data in held.items()
            },
            (names_of,) if isinstance(names_of := tied.get(name, ()), str) else names_of,
            {SOURCE: {"role": known[name]}} if name in known else {},
        )
        for name, held in slots.items()
    ]
    with CheckpointWriter(path, atoms, step=5, durability="none") as writer:
        for name, held in slots.items():
            for slot, data in held.items():
                writer.write(name, slot, np.ascontiguousarray(data).reshape(data.shape))
        for key, value in {"global_steps": 5, "note": "kept", **(values or {})}.items():
            writer.set_value(key, value)
        writer.set_optimizer(
            "optim",
            [(list(group), {"lr": 0.1 * (n + 1), "betas": (0.9, 0.99)}) for n, group in enumerate(groups)],
        )
    return path


def saved_as(source: Path, place: Path) -> None:
    """Write what ``source`` holds as ``torch.save`` would under the name of ``place``, which stands in the archive."""
    with zipfile.ZipFile(source) as one, zipfile.ZipFile(place, "w") as other:
        for name in one.namelist():
            other.writestr(f"{place.stem}/{name.partition('/')[2]}", one.read(name))
