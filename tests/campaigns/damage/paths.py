"""Every way of reading, each as a function from a URL to what it gave: bytes by name.

What a path gives for a damaged checkpoint is what it gave for the good one, or it raises a registered error. A path
that does not apply to a checkpoint (a mapping of what is compressed, an export of what a format cannot hold) raises one
for the good one already.
"""

from __future__ import annotations

import io
import random
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import zarr

import ucpformat as ucp
from tests.campaigns.damage.drawing import Drawn
from ucpformat.comparison import compare
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.copying import copy_checkpoint
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint

__all__ = ["PATHS", "UNVERIFIED", "Given", "Reading"]

UNVERIFIED: Final = "read, verify=False"
"""The path that may give other bytes: documents are checked, data are not."""

Given = Mapping[str, object]
"""What was read: by name, in a form that can be compared."""


@dataclass(frozen=True)
class Reading:
    """What is read: ``good`` is a copy without damage, ``seed`` draws slices, ``scratch`` is for what is made."""

    url: str
    good: str
    drawn: Drawn
    seed: int
    scratch: Path

    def chance(self) -> random.Random:
        """The same for the good checkpoint and the damaged one."""
        return random.Random(self.seed)

    @contextmanager
    def place(self, name: str) -> Iterator[Path]:
        """A new place for what a path makes."""
        path = self.scratch / name
        try:
            yield path
        finally:
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()


def _array(data: Any) -> tuple[object, ...]:
    found = np.ascontiguousarray(data)
    return str(found.dtype), np.shape(data), found.reshape(-1).view(np.uint8).tobytes()


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """What a nested state holds, tensors as bytes."""
    if isinstance(value, Mapping):
        yield name, [*map(str, value)]
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}/{key}")
    elif isinstance(value, list | tuple):
        yield name, len(value)
        for key, inner in enumerate(value):
            yield from _leaves(inner, f"{name}/{key}")
    elif isinstance(value, torch.Tensor):
        yield (
            name,
            (str(value.dtype), tuple(value.shape), value.reshape(-1).view(torch.uint8).numpy().tobytes()),
        )
    elif isinstance(value, np.ndarray):
        yield name, _array(value)
    elif isinstance(value, io.BytesIO):
        yield name, value.getvalue()
    else:
        yield name, repr(value)


def _selection(chance: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for extent in shape:
        if extent and chance.random() < 0.2:
            found.append(chance.randrange(extent))
            continue
        start = chance.randint(0, extent)
        found.append(slice(start, chance.randint(start, extent), chance.choice((1, 1, 2))))
    return tuple(found)


def _each(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    for name, atom in checkpoint.items():
        for slot, view in atom.items():
            yield f"{name}/{slot}", view


def _opened(each: Callable[[Checkpoint, Reading], Iterator[tuple[str, Callable[[], object]]]]) -> Any:
    """A path that opens the checkpoint and reads entry by entry: one that is refused says nothing of others."""

    def path(reading: Reading) -> Given:
        found: dict[str, object] = {}
        with open_checkpoint(reading.url, workers=1) as checkpoint:
            for name, read in each(checkpoint, reading):
                try:
                    found[name] = read()
                except ucp.UcpError as refusal:
                    found[name] = refusal
        return found

    return path


def _some(checkpoint: Checkpoint, reading: Reading) -> Iterator[tuple[str, Callable[[], object]]]:
    chance = reading.chance()
    for name, view in _each(checkpoint):
        for number in range(2):
            picked = _selection(chance, view.shape)
            yield f"{name} {number}", lambda view=view, picked=picked: _array(view[picked])  # type: ignore[misc]


def _all(checkpoint: Checkpoint, reading: Reading) -> Iterator[tuple[str, Callable[[], object]]]:
    del reading
    yield "names", lambda: list(checkpoint)
    yield "layouts", lambda: [repr(layout) for layout in checkpoint.layouts]
    for name, view in _each(checkpoint):
        yield name, lambda view=view: _array(view.read())  # type: ignore[misc]
    for value in checkpoint.state.values:
        yield f"values/{value}", lambda value=value: repr(checkpoint.objects[value])  # type: ignore[misc]
    for blob in checkpoint.state.blobs:
        yield f"blobs/{blob}", lambda blob=blob: checkpoint.blobs[blob]  # type: ignore[misc]


def _mapped(checkpoint: Checkpoint, reading: Reading) -> Iterator[tuple[str, Callable[[], object]]]:
    del reading
    for name, view in _each(checkpoint):
        yield name, lambda view=view: _array(view.mapped())  # type: ignore[misc]
        yield (
            f"{name} in parts",
            lambda view=view: [(repr(box), _array(part)) for box, part in view.mapped_parts()],  # type: ignore[misc]
        )


def _of_a_layout(checkpoint: Checkpoint, reading: Reading) -> Iterator[tuple[str, Callable[[], object]]]:
    """The share of one rank of two, by rows."""
    rank = reading.chance().randrange(2)
    layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("dp", 2),)), (ucp.Shard("dp", 0),))
    for name, atom in checkpoint.items():
        for slot, view in atom.items():
            if view.ndim:
                yield (
                    f"{name}/{slot}",
                    lambda name=name, slot=slot: repr(  # type: ignore[misc]
                        _array(checkpoint.read(name, slot, layout=layout, coord={"dp": rank}))
                    ),
                )


def _unverified(reading: Reading) -> Given:
    """Every slot without a look at checksums; what is compressed may not decode."""
    found: dict[str, object] = {}
    with open_checkpoint(reading.url, verify=False, workers=1) as checkpoint:
        for name, view in _each(checkpoint):
            try:
                found[name] = _array(view.read())
            except ucp.UcpError as refusal:
                found[name] = refusal
    return found


def _load_into_arrays(reading: Reading) -> Given:
    with open_checkpoint(reading.url, workers=2) as checkpoint:
        into = {
            (name, slot): np.empty(view.shape, view.dtype)
            for name, atom in checkpoint.items()
            for slot, view in atom.items()
        }
        checkpoint.load(into)
        return {"/".join(place): _array(data) for place, data in into.items()}


def _load(reading: Reading) -> Given:
    return dict(_leaves(ucp.load(reading.url)))


def _load_torch(reading: Reading) -> Given:
    return dict(_leaves(ucp.load(reading.url, tensors="torch")))


def _load_live(reading: Reading) -> Given:
    if reading.drawn.live is None:
        return {}
    state = reading.drawn.live()
    return dict(_leaves(ucp.load(reading.url, state)))


def _zarr(reading: Reading) -> Given:
    chance = reading.chance()
    with closing(ucp.zarr_store(reading.url)) as store:
        group = zarr.open_group(store, mode="r")
        found: dict[str, object] = {}
        for name, member in sorted(group.members(max_depth=None)):
            if isinstance(member, zarr.Array):
                picked = tuple(
                    one if isinstance(one, slice) else slice(one, one + 1)
                    for one in _selection(chance, member.shape)
                )
                found[name] = _array(member[...]), _array(member[picked])
        return found


def _files(path: Path) -> Given:
    if path.is_file():
        return {"": path.read_bytes()}
    # The digest of all, because what is compared may be kept for long.
    return {
        file.relative_to(path).as_posix(): (file.stat().st_size, zlib.crc32(file.read_bytes()))
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def _converted(format_name: str, **options: Any) -> Callable[[Reading], Given]:
    def path(reading: Reading) -> Given:
        with reading.place(f"converted-{format_name}") as place:
            convert_checkpoint(
                reading.url,
                place,
                source_format=UCP,
                destination_format=format_name,
                engine=EngineOptions(durability="none", workers=1, pool="threads"),
                **options,
            )
            return _files(place)

    return path


def _rewritten(reading: Reading) -> Given:
    """Converted into a checkpoint of the other storage, which is read."""
    storage: Storage = reading.chance().choice(("plain", "packed"))
    with reading.place("rewritten") as place:
        convert_checkpoint(
            reading.url,
            place,
            source_format=UCP,
            destination_format=UCP,
            storage=storage,
            engine=EngineOptions(durability="none", workers=1, pool="threads"),
        )
        found: Given = _opened(_all)(Reading(str(place), "", reading.drawn, 0, reading.scratch))
        return found


def _copied(reading: Reading) -> Given:
    with reading.place("copy") as place:
        done = copy_checkpoint(reading.url, place, durability="none")
        return {**_files(place), "digest": done.digest}


def _compared(reading: Reading) -> Given:
    with open_checkpoint(reading.url, workers=1) as one, open_checkpoint(reading.good, workers=1) as other:
        return {"differences": repr(compare(one, other, by="bytes").differences)}


PATHS: Mapping[str, Callable[[Reading], Given]] = {
    "[...]": _opened(_some),
    "read, values, blobs": _opened(_all),
    "Checkpoint.load": _load_into_arrays,
    "load": _load,
    "load, torch": _load_torch,
    "load into a live state": _load_live,
    "mapped": _opened(_mapped),
    "read a layout": _opened(_of_a_layout),
    "convert to dcp": _converted("dcp"),
    "convert to safetensors": _converted("safetensors", weights_only=True),
    "convert to ucp": _rewritten,
    "zarr_store": _zarr,
    "cp": _copied,
    "diff --bytes": _compared,
    UNVERIFIED: _unverified,
}
if find_spec("safetensors") is None:
    PATHS = {name: path for name, path in PATHS.items() if "safetensors" not in name}
