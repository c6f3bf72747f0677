"""Checkpoints that are drawn: storages, compressors, writers, data types, shapes, values, blobs."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

import ucpformat as ucp
from tests.builders import BLOSC, GZIP, ZSTD, Array, bits
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.copying import copy_checkpoint
from ucpformat.distributed.save import SaveOptions
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.state_dict.save_load import save_state
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

__all__ = ["Drawn", "draw"]

_COMPRESSORS = (GZIP, ZSTD, BLOSC)
_CHUNKS = (64, 256, 1024, 4096, 1 << 16)


@dataclass(frozen=True)
class Drawn:
    """A checkpoint that can be saved: ``save(url, version)``; another version has other bytes and the same shape.

    ``tensors`` are the arrays of a version by names of atom and slot, and ``live`` a state to load into, where the
    checkpoint is one of a live state. Everything is a function of the seed.
    """

    what: str
    save: Callable[[str, int], None]
    tensors: Callable[[int], Mapping[tuple[str, str], Array]]
    live: Callable[[], dict[str, Any]] | None = None


def draw(seed: int) -> Drawn:
    """What a seed comes to."""
    chance = random.Random(seed)
    return chance.choice((_by_writer, _by_writer, _by_ranks, _of_a_model, _of_a_run))(chance)


def _storage(chance: random.Random) -> tuple[Storage, str]:
    storage: Storage = chance.choice(("plain", "packed", "packed"))
    return storage, storage


def _shape(chance: random.Random) -> tuple[int, ...]:
    kind = chance.random()
    if kind < 0.07:
        return ()
    if kind < 0.17:
        return chance.choice(((0,), (0, 3), (4, 0)))
    if kind < 0.97:
        return tuple(chance.randint(1, 16) for _ in range(chance.randint(1, 3)))
    return (chance.randint(20, 300), 1024)  # chunks of whole pages, and now and then several blocks of a MiB


def _data(seed: int, shape: tuple[int, ...], dtype: str, zeros: float) -> Array:
    data = bits(seed, shape, DTYPES[dtype]).copy()
    flat = data.reshape(-1).view(np.uint8)
    flat[: int(flat.size * zeros)] = 0
    return data


def _by_writer(chance: random.Random) -> Drawn:
    """Any data type and slots, in boxes by several threads, with values, an optimizer and blobs."""
    storage, what = _storage(chance)
    chunk_bytes = chance.choice(_CHUNKS)
    is_compressed = chance.random() < 0.4
    plans: dict[tuple[str, str], tuple[int, tuple[int, ...], str, float, Any]] = {}
    for atom in chance.sample(("a", "B", "layers.0.weight", "ü/π", "zarr.json"), chance.randint(1, 3)):
        for slot in chance.sample(("value", "exp_avg", "master"), chance.randint(1, 2)):
            compressor = chance.choice(_COMPRESSORS) if is_compressed and chance.random() < 0.7 else None
            zeros = chance.choice((0.0, 0.0, 0.0, 0.5, 1.0))
            dtype = chance.choice(sorted(DTYPES))
            plans[atom, slot] = chance.getrandbits(30), _shape(chance), dtype, zeros, compressor
    # Hundreds of chunks take as long as all else, and are damaged no otherwise than tens.
    largest = max(DTYPES[dtype].item_bytes * math.prod(shape) for _, shape, dtype, _, _ in plans.values())
    chunk_bytes = max(chunk_bytes, largest // 30)
    workers, blobs = chance.randint(1, 3), chance.randint(0, 2)
    cuts_rows = storage == "packed" and chance.random() < 0.5
    attempt = f"{chance.getrandbits(32):08x}"

    def tensors(version: int) -> Mapping[tuple[str, str], Array]:
        return {
            place: _data(seed + version, shape, dtype, zeros)
            for place, (seed, shape, dtype, zeros, _) in plans.items()
        }

    def save(url: str, version: int) -> None:
        slots: dict[str, dict[str, SlotSpec]] = {}
        for (atom, slot), (_, shape, dtype, _, compressor) in plans.items():
            slots.setdefault(atom, {})[slot] = SlotSpec(dtype, shape, None, compressor)
        writer = CheckpointWriter(
            url,
            [AtomSpec(atom, found) for atom, found in slots.items()],
            storage=storage,
            chunk_bytes=chunk_bytes,
            workers=workers,
            step=version,
            durability="none",
            attempt=f"{attempt}{version}",
        )
        with writer:
            for (atom, slot), data in tensors(version).items():
                if cuts_rows and plans[atom, slot][4] is None and data.ndim and len(data) > 1:
                    middle = len(data) // 2
                    rest = (0,) * (data.ndim - 1)
                    writer.write(atom, slot, np.ascontiguousarray(data[:middle]), (0, *rest))
                    writer.write(atom, slot, np.ascontiguousarray(data[middle:]), (middle, *rest))
                else:
                    writer.write(atom, slot, data)
            writer.set_value("epoch", version)
            writer.set_value("notes", {"list": [1, 2.5, None, "é"], "version": version})
            for number in range(blobs):
                writer.add_blob(f"blob-{number}", bytes([version, number]) * 300, "application/octet-stream")

    return Drawn(f"{what}{', compressed' if is_compressed else ''}, by a writer", save, tensors)


def _by_ranks(chance: random.Random) -> Drawn:
    """Ranks that each hold rows of some tensors, and all of others."""
    storage, what = _storage(chance)
    world = chance.choice((2, 3, 4))
    chunk_bytes = chance.choice(_CHUNKS)
    compressor: Literal["auto"] | None = "auto" if chance.random() < 0.3 else None
    rows, columns, seed = chance.randint(1, 40), chance.randint(1, 20), chance.getrandbits(30)
    mesh = ucp.Mesh((ucp.MeshAxis("dp", world),))
    whole_shape = (world * rows, columns)
    layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), whole_shape)}

    def tensors(version: int) -> Mapping[tuple[str, str], Array]:
        return {
            ("w", "value"): _data(seed + version, whole_shape, "float32", 0.0),
            ("norm", "value"): _data(seed + version + 7, (columns,), "int64", 0.0),
            ("none", "value"): _data(0, (0, 5), "float32", 0.0),
        }

    def save(url: str, version: int) -> None:
        found = {name: data for (name, _), data in tensors(version).items()}

        def work(group: ThreadGroup) -> None:
            model = {**found, "w": found["w"][rows * group.rank :][:rows]}
            options = SaveOptions(storage, chunk_bytes, version, durability="none")
            state = {"model": model, "version": version}
            save_state(url, state, options, group=group, layouts=layouts, compressor=compressor)

        for ended in run_threads(world, work):
            if isinstance(ended, BaseException):
                raise ended

    what = f"{what}{', compressed' if compressor else ''}, by {world} ranks"
    return Drawn(what, save, tensors)


def _of_a_model(chance: random.Random) -> Drawn:
    """A module and its optimizer, whose state is loaded into another module and optimizer."""
    storage, what = _storage(chance)
    chunk_bytes = chance.choice(_CHUNKS)
    compressor: Literal["auto"] | None = "auto" if chance.random() < 0.4 else None
    width, depth, seed = chance.randint(1, 12), chance.randint(1, 2), chance.getrandbits(30)

    def live(version: int = 0) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed + version)
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + version)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            parameter.data = torch.randn(parameter.shape, generator=generator)
        if version:
            optimizer.step()
        return {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": version}

    def tensors(version: int) -> Mapping[tuple[str, str], Array]:
        model = live(version)["model"]
        return {(name, "value"): tensor.numpy() for name, tensor in model.items()}

    def save(url: str, version: int) -> None:
        options = SaveOptions(storage, chunk_bytes, version, durability="none")
        save_state(url, live(version), options, compressor=compressor)

    def empty() -> dict[str, Any]:
        state = live(9)
        for tensor in state["model"].values():
            tensor.zero_()
        return state

    return Drawn(f"{what}{', compressed' if compressor else ''}, of a model", save, tensors, empty)


def _of_a_run(chance: random.Random) -> Drawn:
    """The last of a few increments: rows of several layers, chunks and packs that it shares, with bases or without."""
    storage, what = _storage(chance)
    compressor: Literal["auto"] | None = "auto" if chance.random() < 0.25 else None
    chunk_bytes = chance.choice((1024, 4096, 1 << 16))
    rows, columns, seed = chance.randint(8, 120), chance.choice((8, 16, 33)), chance.getrandbits(30)
    increments, share, keeps_bases = (
        chance.randint(1, 5),
        chance.choice((0.0, 0.03, 0.2)),
        chance.random() < 0.5,
    )

    def state(number: int) -> dict[str, Array]:
        found = {
            "table": _data(seed, (rows, columns), "float32", 0.0),
            "frozen": _data(seed + 1, (columns, 9), "int64", chance_of_zeros),
            "head": _data(seed + 2 + number, (columns,), "float32", 0.0),
        }
        for before in range(1, number + 1):  # rows that any increment has overwritten keep its bytes
            drawn = random.Random(f"{seed}/{before}")
            for row in {drawn.randrange(rows) for _ in range(max(1, int(share * rows)))}:
                found["table"][row] = _data(drawn.getrandbits(30), (columns,), "float32", 0.0)
        return found

    chance_of_zeros = chance.choice((0.0, 0.5, 1.0))

    def tensors(version: int) -> Mapping[tuple[str, str], Array]:
        return {(name, "value"): data for name, data in state(increments + version).items()}

    def save(url: str, version: int) -> None:
        is_remote = "://" in url
        above = None if is_remote else Path(url).parent
        bases = Path(tempfile.mkdtemp(dir=above, prefix="bases-"))
        try:
            last = increments + version
            for number in range(last + 1):
                base = str(bases / f"{number - 1}.ucp") if number else None
                target = url if number == last and not is_remote else str(bases / f"{number}.ucp")
                options = SaveOptions(storage, chunk_bytes, version, durability="none", base=base)
                save_state(target, {"model": state(number)}, options, compressor=compressor)
            if is_remote:
                copy_checkpoint(bases / f"{last}.ucp", url)
        finally:
            if is_remote or not keeps_bases:
                shutil.rmtree(bases)

    what = f"{what}{', compressed' if compressor else ''}, of a run of {increments} increments"
    return Drawn(what, save, tensors)
