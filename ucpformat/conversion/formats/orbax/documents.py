"""Orbax's documents beside the arrays: which leaves a tree has, what the step's items are, how arrays were sharded.

Sources, orbax-checkpoint 0.12.8, below ``orbax/checkpoint/_src``: ``metadata/tree.py`` and ``metadata/value.py``
(``_METADATA``: of every leaf its keys, each of a sequence or a dict, and its type),
``metadata/step_metadata_serialization.py`` (``_CHECKPOINT_METADATA``), ``metadata/sharding.py`` and
``serialization/jax_array_handlers.py`` (``_sharding``: base64 of a leaf's name to JSON), ``metadata/array_metadata.py``
(``array_metadatas/process_<n>``), ``serialization/type_handlers.py`` (``_strings.json``).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.geometry import Layout, Mesh, MeshAxis, lower, named_sharding_steps
from ucpformat.tensor_files.safetensors_file import parse_object

if TYPE_CHECKING:
    from ucpformat.state_dict.keys.paths import StatePath
    from ucpformat.tensor_files.source_files import SourceFiles

__all__ = [
    "ARRAYS",
    "ARRAY_TYPES",
    "CUSTOM",
    "DICT",
    "EMPTY",
    "METADATA",
    "ROOT_METADATA",
    "SCALAR",
    "SEQUENCE",
    "SHARDING",
    "STEP_METADATA",
    "STRING",
    "STRINGS",
    "OrbaxLeaf",
    "OrbaxTree",
    "layout_of",
    "random_keys",
    "read_tree",
    "sharding_layouts",
]

METADATA: Final = "_METADATA"
STEP_METADATA: Final = "_CHECKPOINT_METADATA"
SHARDING: Final = "_sharding"
STRINGS: Final = "_strings.json"
ARRAYS: Final = "array_metadatas"
CUSTOM: Final = "orbax.custom_metadata"
"""The value that holds what the user put into the document of the step, or of a checkpoint of one item."""
ROOT_METADATA: Final = "orbax.root_metadata"
"""The value that holds the metadata of the manager that kept the step."""
SEQUENCE, DICT = 1, 2
"""How ``_METADATA`` numbers the kinds of keys."""

ARRAY_TYPES: Final = ("jax.Array", "np.ndarray")
SCALAR: Final = "scalar"
STRING: Final = "string"
EMPTY: Final[Mapping[str, object]] = {"None": None, "Dict": {}, "List": [], "Tuple": ()}

_LIMIT: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class OrbaxLeaf:
    """A leaf: its path in the tree, the name under which its array lies, and Orbax's word for what it is."""

    path: StatePath
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class OrbaxTree:
    """The leaves of one item, and how their arrays are stored."""

    leaves: tuple[OrbaxLeaf, ...]
    use_ocdbt: bool
    use_zarr3: bool


def read_tree(files: SourceFiles, item: str) -> OrbaxTree:
    """Return the tree of the item in the folder ``item``.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, where it is damaged or of an unknown form.
    """
    at = f"{item}{METADATA}"
    document = parse_object(files.read(at, _LIMIT), at)
    entries = document.get("tree_metadata")
    if not isinstance(entries, dict):
        raise error("UCP-E-SOURCE", "the file has no tree_metadata", at=at)
    leaves = tuple(_leaf(entry, at) for entry in entries.values())
    names = [leaf.name for leaf in leaves]
    if len(set(names)) != len(names):
        raise error("UCP-E-SOURCE", "two leaves of the tree have one name", at=at)
    return OrbaxTree(leaves, _flag(document, "use_ocdbt", True, at), _flag(document, "use_zarr3", False, at))


def _flag(document: Mapping[str, Any], name: str, default: bool, at: str) -> bool:
    value = document.get(name, default)
    if type(value) is not bool:
        raise error("UCP-E-SOURCE", f"{name} is neither true nor false", at=at)
    return value


def _leaf(entry: object, at: str) -> OrbaxLeaf:
    keys = entry.get("key_metadata") if isinstance(entry, dict) else None
    value = entry.get("value_metadata") if isinstance(entry, dict) else None
    kind = value.get("value_type") if isinstance(value, dict) else None
    if not isinstance(keys, list) or not isinstance(kind, str) or not 0 < len(keys) <= 100:
        raise error("UCP-E-SOURCE", "an entry of tree_metadata is not as Orbax writes it", at=at)
    path: list[str | int] = []
    for key in keys:
        text, type_of = (key.get("key"), key.get("key_type")) if isinstance(key, dict) else (None, None)
        if not isinstance(text, str) or type_of not in (SEQUENCE, DICT):
            raise error("UCP-E-SOURCE", "a key of tree_metadata is not as Orbax writes it", at=at)
        if type_of == SEQUENCE and not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise error("UCP-E-SOURCE", f"the place {text!r:.40} in a sequence is no number", at=at)
        path.append(int(text) if type_of == SEQUENCE else text)
    name = ".".join(map(str, path))
    if "\0" in name or name.startswith("/") or ".." in name.split("/"):
        raise error("UCP-E-KEY", f"the name {name!r:.200} leaves the checkpoint's directory", at=at)
    return OrbaxLeaf(tuple(path), name, kind)


def random_keys(files: SourceFiles, item: str) -> dict[str, str]:
    """Return the names of arrays that are JAX's typed random keys, with the implementation that they are of."""
    implementations: dict[str, str] = {}
    for file in files.names(f"{item}{ARRAYS}"):
        at = f"{item}{ARRAYS}/{file}"
        entries = parse_object(files.read(at, _LIMIT), at).get("array_metadatas")
        for entry in entries if isinstance(entries, list) else ():
            one = entry.get("array_metadata") if isinstance(entry, dict) else None
            more = one.get("ext_metadata") if isinstance(one, dict) else None
            implementation = more.get("random_key_impl") if isinstance(more, dict) else None
            if isinstance(one, dict) and isinstance(implementation, str):
                implementations[str(one.get("param_name"))] = implementation
    return implementations


def sharding_layouts(files: SourceFiles, item: str) -> dict[str, Any]:
    """Return the entry of each array in ``_sharding``, by name, as Orbax has it; empty without such a file."""
    if SHARDING not in files.names(item):
        return {}
    at = f"{item}{SHARDING}"
    layouts = {}
    for encoded, text in parse_object(files.read(at, _LIMIT), at).items():
        try:
            name = base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, ValueError):
            raise error("UCP-E-SOURCE", "a name is not base64", at=at) from None
        if not isinstance(text, str):
            raise error("UCP-E-SOURCE", f"the sharding of {name!r:.200} is no text", at=at)
        layouts[name] = parse_object(text.encode("utf-8", "surrogatepass"), at)
    return layouts


def layout_of(sharding: Any, shape: tuple[int, ...]) -> Layout | None:
    """Return a ``NamedSharding`` as a layout; None for anything else, since it only tells the origin."""
    if not isinstance(sharding, dict) or sharding.get("sharding_type") != "NamedSharding":
        return None
    parts: list[Any] = [sharding.get(key) for key in ("shape", "axis_names", "partition_spec")]
    sizes, names, spec = parts
    if not all(isinstance(part, list) for part in parts) or len(sizes) != len(names):
        return None
    if not all(type(size) is int for size in sizes) or not all(type(name) is str for name in names):
        return None
    axes = [[part] if isinstance(part, str) else part or [] for part in spec]
    if not all(isinstance(part, list) and all(name in names for name in part) for part in axes):
        return None
    try:
        mesh = Mesh(tuple(map(MeshAxis, names, sizes)), _device_ids(sharding.get("device_mesh"), sizes))
        layout = Layout(mesh, named_sharding_steps(axes))
        lower(layout, shape)
    except UcpError:
        return None
    return layout if layout.steps else None


def _device_ids(value: Any, sizes: list[int]) -> tuple[int, ...] | None:
    """Return the devices' numbers in row-major order, or None where they are 0, 1, 2, ... or not known."""
    items = [value.get("mesh")] if isinstance(value, dict) else [None]
    for _ in sizes:
        items = [inner for item in items for inner in (item if isinstance(item, list) else [None])]
    ids = [item.get("id") if isinstance(item, dict) else None for item in items]
    numbers = tuple(number for number in ids if type(number) is int)
    if len(numbers) != len(ids) or numbers == tuple(range(len(ids))):
        return None
    return numbers
