"""The ``torch_dist`` format: a DCP directory with ``common.pt`` and ``metadata.json`` (dist_checkpointing/).

Tensors lie under Megatron's keys, whole as far as the parallel degrees go. Objects of single ranks (ShardedObject)
have keys that end in their place, ``rng_state/shard_0.1_2.4``; ``common.pt`` is the rest of the state dict.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

from ucpformat.conversion.formats.megatron.enums import enum_globals, is_enum
from ucpformat.errors import UcpError, error
from ucpformat.jsonio import loads
from ucpformat.model.values import NamedValue
from ucpformat.state_dict.keys.names import Assignment
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = [
    "COMMON",
    "COMMON_GLOBALS",
    "CONFIG",
    "CONFIGURATION",
    "MASTER",
    "NAMESPACE",
    "assign",
    "check_configuration",
    "detect",
    "is_sharded_object",
    "named",
    "state_key",
]

COMMON: Final = "common.pt"
CONFIG: Final = "metadata.json"
METADATA: Final = ".metadata"
CONFIGURATION: Final[Mapping[str, str | int]] = {
    "sharded_backend": "torch_dist",
    "sharded_backend_version": 1,
    "common_backend": "torch",
    "common_backend_version": 1,
}
NAMESPACE: Final = "argparse.Namespace"
MASTER: Final = "master"

_CONFIG_BYTES: Final = 1 << 16
_STATE_KEY: Final = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.([^.]+)\.(.+)", re.DOTALL)
_OBJECT_KEY: Final = re.compile(r".+/shard_\d+(?:\.\d+)*_\d+(?:\.\d+)*", re.DOTALL)
_MASTERS: Final = ("param", "fp32_param")


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` looks like a ``torch_dist`` checkpoint, or what is left of one; never raises.

    Without one of its files it would be a directory of torch's, of which the arguments and the iteration are gone.
    """
    files = SourceFiles(Path(path))
    names = set(files.names())
    if {COMMON, METADATA} <= names:
        return True
    if CONFIG not in names or not {COMMON, METADATA} & names:
        return False
    try:
        check_configuration(files)
    except UcpError:
        return False
    return True


def check_configuration(files: SourceFiles) -> None:
    """Refuse what is not ``torch_dist``, version 1, with a common part by torch: ``UCP-E-SOURCE``."""
    try:
        configuration = loads(files.read(CONFIG, _CONFIG_BYTES), at=CONFIG)
    except UcpError as problem:
        if problem.code == "UCP-E-SOURCE":
            raise
        raise error(
            "UCP-E-SOURCE", f"not a configuration of Megatron's: {problem.message}", at=CONFIG
        ) from None
    if (
        not isinstance(configuration, dict)
        or configuration.get("sharded_backend") != CONFIGURATION["sharded_backend"]
    ):
        name = configuration.get("sharded_backend") if isinstance(configuration, dict) else None
        raise error(
            "UCP-E-SOURCE",
            f"the backend is {name!r}; torch_dist alone is read: load with the Megatron that wrote it, save again",
            at=CONFIG,
        )
    if any(
        configuration.get(key, 1) != value for key, value in CONFIGURATION.items() if key.endswith("version")
    ):
        raise error("UCP-E-SOURCE", "a version of torch_dist that is not known", at=CONFIG)


def is_sharded_object(name: str) -> bool:
    """Return whether a name is the key of a ShardedObject."""
    return _OBJECT_KEY.fullmatch(name) is not None


def assign(keys: Container[str], key: str) -> Assignment:
    """Return the atom and the slot of a tensor: a state goes to its parameter where ``keys`` have that.

    Masters, ``param`` in ``fully_reshardable`` and ``fp32_param`` of optimizers that do not shard, are the slot
    ``master``; other states have their own names.
    """
    match = _STATE_KEY.fullmatch(key)
    if match is None or match[2] not in keys:
        return Assignment(key, "value")
    slot = MASTER if match[1] in _MASTERS else match[1]
    return Assignment(match[2], slot)


def state_key(atom: str, slot: str) -> str:
    """Return the key of a slot that came from elsewhere, as ``fully_reshardable`` has it."""
    if slot == "value":
        return atom
    return f"optimizer.state.{'param' if slot == MASTER else slot}.{atom}"


def _namespace(arguments: tuple[Any, ...]) -> object:
    if arguments:
        raise ValueError("a Namespace takes no arguments")
    return Instance(NAMESPACE)


def named(value: Any) -> Any:
    """Return ``value`` as what `encode` takes: namespaces and members of enumerations by name, others as they are."""
    if isinstance(value, Instance) and (value.kind == NAMESPACE or is_enum(value.kind)):
        return NamedValue(value.kind, named(value.state if isinstance(value.state, dict) else {}))
    if type(value) in (list, tuple):
        return type(value)(map(named, value))
    if type(value) in (dict, OrderedDict):
        return type(value)((key, named(item)) for key, item in value.items())
    return value


COMMON_GLOBALS: Final[Globals] = {
    ("argparse", "Namespace"): Constructor(NAMESPACE, _namespace),
    **enum_globals(),
}
"""What ``common.pt`` and sharded objects may name beyond plain data and tensors."""
