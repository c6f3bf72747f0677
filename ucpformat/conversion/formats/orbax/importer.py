"""Orbax to universal checkpoint: every array an atom under its path; scalars, strings, empty containers as values."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.formats.orbax.arrays import Arrays
from ucpformat.conversion.formats.orbax.documents import (
    ARRAY_TYPES,
    ARRAYS,
    CUSTOM,
    EMPTY,
    METADATA,
    ROOT_METADATA,
    SCALAR,
    SHARDING,
    STEP_METADATA,
    STRING,
    STRINGS,
    layout_of,
    random_keys,
    read_tree,
    sharding_layouts,
)
from ucpformat.errors import error
from ucpformat.geometry import Box
from ucpformat.model.state import StateDocument
from ucpformat.model.values import encode
from ucpformat.state_dict.keys.origins import SOURCE, state_annotations
from ucpformat.state_dict.keys.paths import dotted, path_to_json
from ucpformat.tensor_files.safetensors_file import parse_object
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.writer import AtomSpec, SlotSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ucpformat.conversion.formats.orbax.arrays import ArraySource
    from ucpformat.conversion.formats.orbax.documents import OrbaxLeaf, OrbaxTree
    from ucpformat.jsonio import JsonValue
    from ucpformat.state_dict.keys.paths import StatePath

__all__ = ["FORMAT", "RANDOM_KEY", "detect", "import_orbax"]

FORMAT: Final = "orbax"
RANDOM_KEY: Final = "random_key"
"""The member of a slot's annotation that says of which implementation a random key is."""

_JSON_HANDLER: Final = "JsonCheckpointHandler"
_TREE_HANDLERS: Final = ("PyTreeCheckpointHandler", "StandardCheckpointHandler")
_STEP: Final = re.compile(r"(?:.*_)?(\d{1,15})")
_LIMIT: Final = 256 << 20
_COMMITTED: Final = "commit_success.txt"
_MANIFEST: Final = "manifest.ocdbt"
_OCDBT: Final = re.compile(r"d|ocdbt\.process_\d+")
_ROOT_METADATA: Final = "metadata"
_METRICS: Final = "metrics"


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is an item, a step or a directory of steps; reads nothing and never raises."""
    try:
        root = Path(path)
        return bool(_is_step(root) or _steps(root) or _unfinished(root))
    except (OSError, ValueError):
        return False


def _is_step(path: Path) -> bool:
    return (path / METADATA).is_file() or (path / STEP_METADATA).is_file()


def _steps(root: Path) -> dict[int, Path]:
    if not root.is_dir():
        return {}
    return {
        int(match[1]): child
        for child in root.iterdir()
        if (match := _STEP.fullmatch(child.name)) and child.is_dir() and _is_step(child)
    }


def _unfinished(root: Path) -> dict[int, Path]:
    """Return steps that have trees and lack the document by which Orbax knows a finished one."""
    if not root.is_dir():
        return {}
    return {
        int(child.name): child
        for child in root.iterdir()
        if child.name.isdecimal()
        and child.name.isascii()
        and len(child.name) < 16
        and not _is_step(child)
        and any(child.glob(f"*/{METADATA}"))
    }


@dataclass(slots=True)
class _Contents:
    """What the items hold, by path."""

    arrays: dict[StatePath, tuple[ArraySource, SlotSpec]] = field(default_factory=dict)
    values: dict[StatePath, JsonValue] = field(default_factory=dict)
    dropped: list[Lost] = field(default_factory=list)


def import_orbax(path: str | os.PathLike[str], *, settings: Mapping[str, str]) -> Job:
    """Plan the conversion of an item, a step, or of a manager's directory the last step, or that of ``step``.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming file or array, for what is missing, damaged or of another form;
            ``UCP-E-DTYPE``, ``UCP-E-OBJECT`` for what has no place in the format.
    """
    files = SourceFiles(Path(path))
    contents = _Contents()
    if not _is_step(files.root):
        files = _chosen_step(contents, files, settings.get("step") or "")
    if METADATA in files.names():
        _add_tree(contents, files, "", ())
    else:
        _add_items(contents, files)
    _add_custom(contents, files)
    return _job(contents, files.root)


def _chosen_step(contents: _Contents, files: SourceFiles, chosen: str) -> SourceFiles:
    """Return the step of a manager's directory: the last, or the one that is asked for."""
    steps = _steps(files.root)
    unfinished = _unfinished(files.root)
    if not chosen and unfinished and max(unfinished) > max(steps, default=-1):
        earlier = f"; --from-set step={max(steps)} reads the one before" if steps else ""
        raise error(
            "UCP-E-SOURCE",
            f"the last step has no {STEP_METADATA}: its save never finished, or the file is lost{earlier}",
            at=unfinished[max(unfinished)].name,
        )
    wanted = chosen or (str(max(steps)) if steps else "")
    if not wanted.isdecimal() or int(wanted) not in steps:
        there = ", ".join(map(str, sorted(steps)[-8:])) or "none"
        raise error(
            "UCP-E-SOURCE", f"there is no finished step {wanted!r:.40}; there are {there}", at=str(files.root)
        )
    if files.names(_ROOT_METADATA):
        contents.values[(ROOT_METADATA,)] = _json_item(files, _ROOT_METADATA)
    return files.below(steps[int(wanted)].name)


def _json_item(files: SourceFiles, item: str) -> JsonValue:
    """Return what Orbax's handler of JSON wrote: one file, whose name its user may choose."""
    names = [name for name in files.names(item) if name != _COMMITTED]
    if len(names) != 1:
        at = f"{item}/{names[1] if names else item if item == _METRICS else _ROOT_METADATA}"
        raise error("UCP-E-SOURCE", f"an item of JSON is one file, and here are {len(names)}", at=at)
    _look_at_mark(files, f"{item}/")
    at = f"{item}/{names[0]}"
    return encode(parse_object(files.read(at, _LIMIT), at), at=item)


def _look_at_mark(files: SourceFiles, item: str) -> None:
    """Read the file by which Orbax marks what is committed on stores that cannot rename; it says nothing else."""
    if _COMMITTED in files.names(item):
        files.read(f"{item}{_COMMITTED}", _LIMIT)


def _add_custom(contents: _Contents, files: SourceFiles) -> None:
    """Add what the user put into the step's own document; without that, it is unknown whether there was any."""
    if STEP_METADATA not in files.names():
        contents.dropped.append(
            Lost(
                f"files/{STEP_METADATA}", "it is missing: custom metadata of the save are lost", matters=False
            )
        )
        return
    custom = parse_object(files.read(STEP_METADATA, _LIMIT), STEP_METADATA).get("custom_metadata")
    if custom:
        contents.values[(CUSTOM,)] = encode(custom, at=STEP_METADATA)


def _add_items(contents: _Contents, files: SourceFiles) -> None:
    """Add the items of a step: trees, JSON, and others, which are not read."""
    document = parse_object(files.read(STEP_METADATA, _LIMIT), STEP_METADATA)
    handlers = document.get("item_handlers")
    if isinstance(handlers, str):
        raise error("UCP-E-SOURCE", "the file is missing, which lists the leaves of the tree", at=METADATA)
    if not isinstance(handlers, dict) or not all(isinstance(name, str) for name in handlers.values()):
        raise error("UCP-E-SOURCE", "it names no items", at=STEP_METADATA)
    for name, handler in handlers.items():
        if "/" in name or name.startswith(".") or not name:
            raise error(
                "UCP-E-KEY", f"the item {name!r:.200} leaves the checkpoint's directory", at=STEP_METADATA
            )
        inside = files.names(name)
        if METADATA in inside:
            _add_tree(contents, files, f"{name}/", (name,))
        elif not inside:
            raise error("UCP-E-SOURCE", "the item is missing", at=name)
        elif handler.endswith(_JSON_HANDLER):
            contents.values[(name,)] = _json_item(files, name)
        elif handler.endswith(_TREE_HANDLERS):
            raise error(
                "UCP-E-SOURCE", "the file is missing, which lists the leaves", at=f"{name}/{METADATA}"
            )
        else:
            contents.dropped.append(Lost(f"items/{name}", f"written by {handler.rpartition('.')[2]:.80}"))
    for name in files.names():
        if (files.root / name).is_dir() and name not in handlers:
            contents.dropped.append(Lost(f"items/{name}", f"not an item that {STEP_METADATA} lists"))
    _look_at_mark(files, "")


def _add_tree(contents: _Contents, files: SourceFiles, item: str, at: StatePath) -> None:
    tree = read_tree(files, item)
    stored = {leaf.name: leaf for leaf in tree.leaves if leaf.kind in (*ARRAY_TYPES, SCALAR)}
    _hand_over(files, item, tree, stored)
    arrays = Arrays(files.root / item, item, use_ocdbt=tree.use_ocdbt, use_zarr3=tree.use_zarr3).open(stored)
    shardings = sharding_layouts(files, item)
    keys = random_keys(files, item)
    strings: dict[str, Any] = {}
    if any(leaf.kind == STRING for leaf in tree.leaves):
        strings = parse_object(files.read(f"{item}{STRINGS}", _LIMIT), f"{item}{STRINGS}")
    _report_missing(contents, files, item, tree)
    for leaf in tree.leaves:
        path = (*at, *leaf.path)
        if leaf.kind in ARRAY_TYPES:
            source = arrays[leaf.name]
            note: dict[str, JsonValue] = {"path": path_to_json(path)}
            if leaf.name in keys:
                note[RANDOM_KEY] = keys[leaf.name]
            layout = layout_of(shardings.get(leaf.name), source.shape)
            spec = SlotSpec(source.dtype, source.shape, layout, annotations={SOURCE: note})
            contents.arrays[path] = (source, spec)
        else:
            contents.values[path] = encode(_value(leaf, arrays, strings, item), at=dotted(path))


def _hand_over(files: SourceFiles, item: str, tree: OrbaxTree, stored: Collection[str]) -> None:
    """Look at all files that TensorStore is going to open, since it follows links wherever they lead."""
    names = files.names(item)
    for name in names:
        if tree.use_ocdbt and _OCDBT.fullmatch(name):
            files.hand_over(f"{item}{name}")
    for name in stored:
        if not tree.use_ocdbt and (files.root / item / name).is_dir():
            files.hand_over(f"{item}{name}")
    if tree.use_ocdbt and stored:
        files.read(f"{item}{_MANIFEST}", _LIMIT)
    _look_at_mark(files, item)


def _report_missing(contents: _Contents, files: SourceFiles, item: str, tree: OrbaxTree) -> None:
    """Report documents that Orbax writes beside JAX's arrays, and what goes with them where they are not there."""
    if not any(leaf.kind == ARRAY_TYPES[0] for leaf in tree.leaves):
        return
    names = files.names(item)
    if SHARDING not in names:
        contents.dropped.append(
            Lost(f"files/{item}{SHARDING}", "it is missing: how arrays were sharded is lost", matters=False)
        )
    if not files.names(f"{item}{ARRAYS}"):
        contents.dropped.append(
            Lost(
                f"files/{item}{ARRAYS}/process_0",
                "it is missing: which arrays are random keys is lost",
                matters=False,
            )
        )


def _value(
    leaf: OrbaxLeaf, arrays: Mapping[str, ArraySource], strings: Mapping[str, Any], item: str
) -> object:
    if leaf.kind == SCALAR:
        source = arrays[leaf.name]
        if source.shape:
            raise error("UCP-E-SOURCE", "a scalar has dimensions", at=source.at)
        out = np.empty((), source.array.dtype.numpy_dtype)
        source(Box((), ()), out)
        return _number(out)
    if leaf.kind == STRING:
        text = strings.get(leaf.name)
        if not isinstance(text, str):
            raise error("UCP-E-SOURCE", f"the text of {leaf.name!r:.200} is missing", at=f"{item}{STRINGS}")
        return text
    if leaf.kind in EMPTY:
        return EMPTY[leaf.kind]
    raise error(
        "UCP-E-OBJECT",
        f"{leaf.name!r:.200} is a {leaf.kind!r:.80}, which only the program that wrote it can read",
        at=f"{item}{METADATA}",
    )


def _number(array: np.ndarray[Any, np.dtype[Any]]) -> object:
    """Return a number of Python's where its type says no more than Orbax would make of it again, else numpy's."""
    if array.dtype in (np.dtype("int64"), np.dtype("float64"), np.dtype("bool")):
        return array.item()
    return array[()]


def _job(contents: _Contents, root: Path) -> Job:
    names: dict[str, StatePath] = {}
    for path in (*contents.arrays, *contents.values):
        if names.setdefault(dotted(path), path) != path:
            raise error("UCP-E-NAME", f"two leaves have the name {dotted(path)!r:.200}", at=str(root))
    match = _STEP.fullmatch(root.name)
    return Job(
        [AtomSpec(dotted(path), {"value": spec}) for path, (_, spec) in contents.arrays.items()],
        [SlotSource(dotted(path), "value", source) for path, (source, _) in contents.arrays.items()],
        StateDocument(
            {dotted(path): value for path, value in contents.values.items()},
            {},
            {},
            state_annotations(FORMAT, {}, {dotted(path): path for path in contents.values}),
        ),
        step=int(match[1]) if match else None,
        dropped=contents.dropped,
    )
