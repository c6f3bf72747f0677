"""Universal checkpoint to Orbax: one PyTree item, as ``StandardCheckpointer`` and ``PyTreeCheckpointer`` restore it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.content import slot_blocks
from ucpformat.conversion.contract.foreign import ExportPlan, Lost
from ucpformat.conversion.engine.out_directory import empty_directory, new_file
from ucpformat.conversion.formats.orbax.arrays import array_spec, tensorstore, translated
from ucpformat.conversion.formats.orbax.documents import (
    ARRAYS,
    CUSTOM,
    DICT,
    METADATA,
    SCALAR,
    SEQUENCE,
    STEP_METADATA,
    STRING,
    STRINGS,
)
from ucpformat.conversion.formats.orbax.importer import RANDOM_KEY
from ucpformat.errors import error
from ucpformat.model.dtype import dtype_of
from ucpformat.model.values import decode
from ucpformat.state_dict.keys.groups import expand_groups
from ucpformat.state_dict.keys.origins import SOURCE, alias_paths, group_origin, slot_path, value_paths
from ucpformat.state_dict.keys.paths import NumberKey, StatePath, dotted
from ucpformat.storage.reading.stored_slot import slot_form

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content, SlotContent

__all__ = ["export_orbax"]

_HANDLER: Final = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
_CHUNK: Final = 16 << 20
_EMPTY: Final = {dict: "Dict", list: "List", type(None): "None"}


@dataclass(slots=True)
class _Tree:
    """What is written: arrays and scalars by name, texts, and the entries of ``_METADATA``."""

    slots: dict[str, SlotContent] = field(default_factory=dict)
    numbers: dict[str, np.ndarray[Any, np.dtype[Any]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    entries: dict[str, object] = field(default_factory=dict)
    paths: dict[str, StatePath] = field(default_factory=dict)
    custom: object = field(default_factory=dict)

    def claim(self, path: StatePath, kind: str, *, empty: bool = False) -> str:
        """Claim ``path`` for a leaf of ``kind``, and return its name."""
        name = dotted(path)
        if name in self.paths:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would be the leaf {name!r:.200}")
        self.paths[name] = path
        keys = [str(step) for step in path]
        self.entries[str(tuple(keys))] = {
            "key_metadata": [
                {"key": key, "key_type": SEQUENCE if type(step) is int else DICT}
                for key, step in zip(keys, path, strict=True)
            ],
            "value_metadata": {"value_type": kind, "skip_deserialize": empty},
        }
        return name


def export_orbax(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
) -> ExportPlan:
    """Plan the directory of an item.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for settings, ``UCP-E-NAME`` where two things would have one name, ``UCP-E-SOURCE``
            where TensorStore is missing or fails, which it does for data types that its Zarr lacks.
    """
    use_ocdbt = _choice(settings, "ocdbt", {"true": True, "false": False}, "true")
    use_zarr3 = _choice(settings, "zarr", {"2": False, "3": True}, "3")
    tensorstore()
    tree = _Tree()
    dropped: list[Lost] = []
    renamed: dict[str, str] = {}
    keys: dict[str, str] = {}
    for atom in content.values():
        for name, slot in atom.items():
            what = f"{atom.name}/{name}"
            if 0 in slot.shape:
                dropped.append(Lost(what, "Orbax keeps no arrays without elements"))
                continue
            source = slot.annotations.get(SOURCE)
            implementation = source.get(RANDOM_KEY) if isinstance(source, dict) else None
            aliases = alias_paths(atom) if name == "value" else []
            for place in (slot_path(atom.name, name, slot.annotations), *aliases):
                # Of jax.Array, Orbax asks for a sharding; an ndarray is restored to one where that is asked for.
                is_key = isinstance(implementation, str)
                leaf = tree.claim(place, "jax.Array" if is_key else "np.ndarray")
                tree.slots[leaf] = slot
                renamed.setdefault(what, leaf)
                if is_key:
                    keys[leaf] = str(implementation)
    for where, what, value in _values(content):
        if what == f"values/{CUSTOM}" and _is_json(value):
            tree.custom = value  # its place is the document of the checkpoint, not the tree
            continue
        if not _add_value(tree, where, value):
            dropped.append(Lost(what, "a tree of Orbax has no leaves of its type"))
    dropped += [Lost(f"blobs/{name}", "Orbax keeps no bytes in a tree") for name in content.blobs]

    def write() -> None:
        with empty_directory(path) as root:
            _write(root, tree, keys, progress, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)

    return ExportPlan(len(tree.numbers) + len(tree.texts), renamed, dropped, write=write)


def _choice(settings: Mapping[str, str], name: str, choices: Mapping[str, bool], default: str) -> bool:
    text = settings.get(name) or default
    if text not in choices:
        raise error("UCP-E-MISMATCH", f"{text!r:.40} is none of {', '.join(choices)}", at=name)
    return choices[text]


def _values(content: Content) -> Iterator[tuple[StatePath, str, object]]:
    """Yield values and parameter groups: where they belong, what they are called, decoded."""
    nested = value_paths(content.state)
    for name, value in content.state.values.items():
        yield nested.get(name, (name,)), f"values/{name}", decode(value, at=name)
    for name, optimizer in content.state.optimizers.items():
        for steps, value in expand_groups(optimizer, group_origin(content.state, name)).values():
            yield steps, f"optimizers/{name}", decode(value, at=dotted(steps))


def _add_value(tree: _Tree, path: StatePath, value: object) -> bool:
    """Take a value as leaves; False where it, or a part of it, is of a type that a tree has no leaves of."""
    leaves: list[tuple[StatePath, object]] = []
    if not _flat(path, value, leaves):
        return False
    for place, leaf in leaves:
        if isinstance(leaf, str):
            tree.texts[tree.claim(place, STRING)] = leaf
        elif isinstance(leaf, np.ndarray):
            tree.numbers[tree.claim(place, SCALAR if leaf.ndim == 0 else "np.ndarray")] = leaf
        else:
            tree.claim(place, _EMPTY[type(leaf)], empty=True)
    return True


def _flat(path: StatePath, value: object, leaves: list[tuple[StatePath, object]]) -> bool:
    if isinstance(value, tuple) and type(value) is tuple:
        value = list(value)
    if type(value) is dict and value:
        return all(
            type(key) in (str, int)
            and _flat((*path, key if type(key) is str else NumberKey(key)), item, leaves)
            for key, item in value.items()
        )
    if type(value) is list and value:
        return all(_flat((*path, place), item, leaves) for place, item in enumerate(value))
    if type(value) is int:
        if not -(2**63) <= value < 2**63:
            return False
        value = np.asarray(value, np.int64)
    elif type(value) in (bool, float) or isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufV" or 0 in value.shape:
            return False
    elif not isinstance(value, str) and type(value) not in _EMPTY:
        return False
    leaves.append((path, value))
    return True


def _write(
    root: Path,
    tree: _Tree,
    keys: Mapping[str, str],
    progress: Callable[[int], None],
    *,
    use_ocdbt: bool,
    use_zarr3: bool,
) -> None:
    store = tensorstore()
    context = store.Context()
    metadata = []
    for name, slot in tree.slots.items():
        chunk = tuple(map(min, slot_form(slot.dtype.name, slot.shape, _CHUNK)[1].chunk_shape, slot.shape))
        spec = array_spec(root, name, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
        array = _created(store, context, spec, name, slot.dtype.name, slot.shape, chunk)
        _copy(array, slot, name, progress)
        extension = {"random_key_impl": keys[name]} if name in keys else None
        one = {
            "param_name": name,
            "write_shape": list(chunk),
            "chunk_shape": list(chunk),
            "ext_metadata": extension,
        }
        metadata.append({"array_metadata": one})
    for name, number in tree.numbers.items():
        spec = array_spec(root, name, use_ocdbt=use_ocdbt, use_zarr3=use_zarr3)
        array = _created(store, context, spec, name, dtype_of(number.dtype).name, number.shape, number.shape)
        with translated(name):
            array.write(number).result()
    if metadata:
        _write_document(root / ARRAYS / "process_0", {"array_metadatas": metadata})
    if tree.texts:
        _write_document(root / STRINGS, tree.texts)
    document = {
        "tree_metadata": tree.entries,
        "use_ocdbt": use_ocdbt,
        "use_zarr3": use_zarr3,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    _write_document(root / METADATA, document)
    # Last: it is what makes a directory a finished checkpoint.
    _write_document(
        root / STEP_METADATA, {"item_handlers": _HANDLER, "metrics": {}, "custom_metadata": tree.custom}
    )


def _is_json(value: object) -> bool:
    """Return whether a value is what JSON has: Orbax's custom metadata are."""
    if type(value) is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_is_json, value))
    if type(value) is float:
        return math.isfinite(value)
    return value is None or type(value) in (bool, int, str)


def _write_document(path: Path, document: object) -> None:
    with new_file(path, durable=True) as stream:
        stream.write(json.dumps(document).encode())


def _created(
    store: Any,
    context: Any,
    spec: Mapping[str, Any],
    name: str,
    kind: str,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
) -> Any:
    # Without a word TensorStore compresses Zarr 2 by Blosc; Orbax does by zstd.
    encoding = {"metadata": {"compressor": {"id": "zstd"}}} if spec["driver"] == "zarr" else {}
    with translated(name):
        return store.open(
            {**spec, **encoding, "store_data_equal_to_fill_value": True},
            create=True,
            open=False,
            dtype=store.dtype(kind),
            shape=list(shape),
            chunk_layout=store.ChunkLayout(chunk_shape=list(chunk)),
            context=context,
        ).result()


def _copy(array: Any, slot: SlotContent, name: str, progress: Callable[[int], None]) -> None:
    for box, data in slot_blocks(slot.dtype.name, slot.shape, slot.read_box, _CHUNK):
        where = tuple(slice(start, stop) for start, stop in zip(box.offset, box.stop, strict=True))
        with translated(name):
            array[where].write(data).result()
        progress(data.nbytes)
