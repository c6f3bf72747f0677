"""What atoms, bytes and layouts cost one process that saves, opens, reads and validates."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.contenders.ours import NAME, Ours
from benchmarks.growth.curves import Point, best_of
from benchmarks.measure import Reading, footprint
from benchmarks.state import TrainingState
from benchmarks.workloads import workload
from ucpformat.geometry import Layout, Mesh, MeshAxis, Only, Shard
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import open_checkpoint
from ucpformat.validation import validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

__all__ = ["at_atoms", "at_bytes", "at_coordinates", "at_layouts"]

_MIB: Final = 1 << 20
_ELEMENTS: Final = 256


def at_bytes(nbytes: int, repeats: int, directory: Path) -> Point:
    """A GPT's state of about so many bytes: saved into the page cache, and loaded into place."""
    state = workload("gpt", nbytes)
    into = state.blank()
    ours = Ours("packed")
    with tempfile.TemporaryDirectory(dir=directory) as room:
        paths = (Path(tempfile.mkdtemp(dir=room)) for _ in range(repeats))
        _, saved = best_of(repeats, lambda: ours.save(state, next(paths), "none"))
        last = max(Path(room).iterdir(), key=lambda path: path.stat().st_mtime_ns)
        _, loaded = best_of(repeats, lambda: ours.load(last, into))
        objects = footprint(last).objects
    wrong = state.differing(into)
    if wrong is not None:
        raise ValueError(f"other values of {wrong} came back")
    return Point(
        nbytes // _MIB,
        {
            "save, CPU s": saved.cpu_seconds,
            "save, memory above the state, MiB": saved.peak_bytes / _MIB,
            "load, CPU s": loaded.cpu_seconds,
            "load, memory above the state, MiB": loaded.peak_bytes / _MIB,
            "arrays": len(state.flat),
            "objects": objects,
        },
    )


def at_atoms(count: int, repeats: int, directory: Path) -> Point:
    """So many atoms of one tensor of 1 KiB each: saved, opened, one read, all loaded, metadata validated."""
    values = np.ones(_ELEMENTS, np.float32)
    names = [f"layers.{number // 100}.{number % 100}.weight" for number in range(count)]
    state = TrainingState({name: {"value": values} for name in names})
    into = TrainingState({name: {"value": np.zeros_like(values)} for name in names})
    ours = Ours("packed")
    with tempfile.TemporaryDirectory(dir=directory) as room:
        rooms = [Path(tempfile.mkdtemp(dir=room)) for _ in range(repeats)]
        fresh = iter(rooms)
        _, saved = best_of(repeats, lambda: ours.save(state, next(fresh), "none"))
        path = rooms[0] / NAME
        _, opened = best_of(repeats, partial(_read_one, path, names[count // 2]))
        _, loaded = best_of(repeats, lambda: ours.load(rooms[0], into))
        found, checked = best_of(repeats, lambda: validate(path, "semantics"))
        documents = sum(file.stat().st_size for file in path.glob("index/*"))
    if found:
        raise ValueError(f"what was saved is not valid: {found[0]}")
    return Point(
        count,
        {
            **_both("save", saved),
            **_both("open and read one", opened),
            **_both("load all", loaded),
            **_both("validate metadata", checked),
            "index parts and tables, MiB": documents / _MIB,
        },
    )


def _both(what: str, reading: Reading) -> dict[str, float]:
    return {f"{what}, CPU s": reading.cpu_seconds, f"{what}, MiB": reading.peak_bytes / _MIB}


def _read_one(path: Path, name: str) -> None:
    with open_checkpoint(path) as checkpoint:
        checkpoint[name]["value"].read()


def at_layouts(count: int, repeats: int, directory: Path) -> Point:
    """So many atoms, each with a layout of its own: a stage and a group of experts, split over the rest."""
    stages = max(1, min(16, count // 4))
    groups = -(-count // stages)
    mesh = Mesh((MeshAxis("pp", stages), MeshAxis("ep", groups), MeshAxis("tp", 2)))
    layouts = [
        Layout(mesh, (Only("pp", (number % stages,)), Only("ep", (number // stages,)), Shard("tp", 0)))
        for number in range(count)
    ]
    return _with_layouts(count, layouts, repeats, directory)


def at_coordinates(count: int, repeats: int, directory: Path) -> Point:
    """One atom, split over a mesh with so many coordinates."""
    return _with_layouts(
        count, [Layout(Mesh((MeshAxis("dp", count),)), (Shard("dp", 0),))], repeats, directory
    )


def _with_layouts(size: int, layouts: list[Layout], repeats: int, directory: Path) -> Point:
    values = np.ones(_ELEMENTS, np.float32)
    specs = [
        AtomSpec(f"w{number:06}", {"value": SlotSpec("float32", values.shape, layout)})
        for number, layout in enumerate(layouts)
    ]

    def save(path: Path) -> None:
        with CheckpointWriter(path, specs, durability="none") as writer:
            for spec in specs:
                writer.submit(spec.name, "value", values)

    with tempfile.TemporaryDirectory(dir=directory) as room:
        paths = [Path(room, f"{number}.ucp") for number in range(repeats)]
        fresh = iter(paths)
        _, saved = best_of(repeats, lambda: save(next(fresh)))
        _, opened = best_of(repeats, partial(_read_one, paths[0], specs[0].name))
        found, checked = best_of(repeats, lambda: validate(paths[0], "semantics", layout_work=1 << 40))
        root = (paths[0] / ROOT_KEY).stat().st_size
    if found:
        raise ValueError(f"what was saved is not valid: {found[0]}")
    return Point(
        size,
        {
            "save, CPU s": saved.cpu_seconds,
            "open and read one, CPU s": opened.cpu_seconds,
            "validate metadata, CPU s": checked.cpu_seconds,
            "root document, KiB": root / 1024,
        },
    )
