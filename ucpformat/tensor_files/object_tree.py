"""What a pickle may cost, and the check that its result is a finite tree of plain values."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.stand_ins import (
    NumpyArray,
    NumpyDtype,
    NumpyScalar,
    PathValue,
    TensorValue,
    TorchDevice,
    TorchDtype,
    TorchLayout,
)

__all__ = ["Instance", "Limits", "check_hashable", "check_tree", "refused", "spelled", "weight"]

_MAX_KEY_NODES = 1000
_LEAST_NODES: Final = 1 << 14
_NODES_PER_BYTE: Final = 16
_LEAVES: Final = (
    *(bool, int, float, complex, str, bytes, bytearray, range),
    *(TorchDtype, TorchDevice, TorchLayout, TensorValue, NumpyDtype, NumpyArray, NumpyScalar, PathValue),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
)
_SCALARS: Final = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pickle may cost.

    ``pickle_bytes`` bounds the pickle itself, ``nodes`` the objects it expands to, where shared ones count
    each time and 16 bytes of text or data count as one more, ``depth`` their nesting.
    """

    pickle_bytes: int = 256 << 20
    nodes: int = 64 << 20
    depth: int = 100

    def of(self, nbytes: int) -> Limits:
        """Return the limits of a pickle of so many bytes: sharing may expand to 16 objects for each, and 16,384."""
        return replace(self, nodes=min(self.nodes, _LEAST_NODES + _NODES_PER_BYTE * nbytes))


@dataclass(slots=True, eq=False)
class Instance:
    """An object of a foreign class as data: the class's name and the state the pickle gave it."""

    kind: str
    state: Any = field(default=None)


def refused(message: str, at: str) -> UcpError:
    """Return the error for a pickle that is malformed or asks for what is not allowed."""
    return error("UCP-E-PICKLE", message, at=at)


def check_hashable(key: object, at: str) -> None:
    """Refuse dict keys and set elements that are not plain and small: hashing must not be a trap."""
    pending = [key]
    count = 0
    while pending:
        item = pending.pop()
        count += 1
        if count > _MAX_KEY_NODES:
            raise error("UCP-E-LIMIT", "a dict key or set element has too many parts", at=at)
        if isinstance(item, tuple | frozenset):
            pending.extend(item)
        elif item is not None and not isinstance(
            item, str | bytes | bool | int | float | complex | TorchDtype | TorchDevice | PathValue | Instance
        ):
            raise refused(f"a dict key or set element is a {type(item).__name__}", at)


def check_tree(root: object, *, at: str, limits: Limits, also: tuple[type, ...] = ()) -> None:
    """Refuse a result of `unpickle` that refers to itself, nests too deeply, expands too far or is not data.

    ``also`` are further types of data; an `Instance`, if among them, is data where its state is.
    After this, walking ``root`` by recursion is safe and costs at most ``limits.nodes`` steps.
    Raises ``UCP-E-LIMIT`` and ``UCP-E-PICKLE``.
    """
    done: dict[int, tuple[int, int]] = {}  # of every container: nodes, depth
    active: set[int] = set()
    pending: list[tuple[object, bool]] = [(root, False)]
    while pending:
        item, leave = pending.pop()
        if id(item) in done:
            continue
        parts = _parts(item, at, also)
        if not leave:
            if id(item) in active:
                raise refused("the pickle holds an object that contains itself", at)
            if parts:
                active.add(id(item))
                pending.append((item, True))
                pending.extend((part, False) for part in parts if not isinstance(part, _SCALARS))
            continue
        active.discard(id(item))
        below = [done.get(id(part)) or (weight(part), 0) for part in parts]
        nodes = 1 + sum(count for count, _ in below)
        depth = 1 + max(depth for _, depth in below)
        if nodes > limits.nodes or depth > limits.depth:
            raise error("UCP-E-LIMIT", "the object is too large or nests too deeply", at=at)
        done[id(item)] = (nodes, depth)


def weight(item: object) -> int:
    """Return what ``item`` alone costs, without its parts, in nodes."""
    if isinstance(item, str | bytes | bytearray):
        return 1 + len(item) // 16
    if isinstance(item, TensorValue | NumpyArray | NumpyScalar):
        return 1 + len(item.data) // 16
    if isinstance(item, dict | list | tuple | set | frozenset):
        return 1 + len(item)
    return 1


def _parts(item: object, at: str, also: tuple[type, ...]) -> Collection[object]:
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return item
    if isinstance(item, also):
        return (item.state,) if isinstance(item, Instance) else ()
    if item is not None and not isinstance(item, _LEAVES):
        raise refused(f"the object holds a {type(item).__name__}, which is not data", at)
    return ()


def spelled(value: object) -> str:
    """Return ``repr`` of a finite tree, but for the order of sets: that of the hashes of the process that wrote it.

    Equal where types and values are, NaN and -0.0 included.
    """
    name = type(value).__name__
    if isinstance(value, Instance):
        return f"{value.kind}({spelled(value.state)})"
    if isinstance(value, set | frozenset):
        return f"{name}({sorted(map(spelled, value))})"
    if isinstance(value, tuple | list):
        return f"{name}({[spelled(item) for item in value]})"
    if isinstance(value, dict):
        items = [(spelled(key), spelled(item)) for key, item in value.items()]
        return f"{name}{getattr(value, 'factory', '')}({items})"
    return repr(value)
