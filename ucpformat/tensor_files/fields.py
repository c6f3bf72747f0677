"""Typed access to what a pickle held: anything unexpected is refused, naming the file.

Records, inert, have members that are read by name and type: a class gains some from one release of a framework to the
next, so nothing here counts them, and what is not asked for is passed over.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.stand_ins import TorchDtype, TorchLayout
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = [
    "DENSE",
    "data_type",
    "integer",
    "items",
    "layout",
    "mapping",
    "member",
    "members",
    "refused",
    "shape_of",
    "tensor",
    "tensors",
]


def refused(message: str, at: str) -> UcpError:
    """Return the refusal of a file that is not as DeepSpeed writes it."""
    return error("UCP-E-SOURCE", message, at=at)


def mapping(value: object, what: str, at: str) -> Mapping[Any, Any]:
    """Return ``value`` as a dict."""
    if not isinstance(value, dict):
        raise refused(f"{what} is a {type(value).__name__}, not a dict", at)
    return value


def items(value: object, what: str, at: str) -> Sequence[Any]:
    """Return ``value`` as a list."""
    if not isinstance(value, list | tuple):
        raise refused(f"{what} is a {type(value).__name__}, not a list", at)
    return value


def member(value: Mapping[Any, Any], name: str, at: str) -> Any:
    """Return a member that must be there."""
    if name not in value:
        raise refused(f"{name!r} is missing: not as DeepSpeed writes it", at)
    return value[name]


def integer(value: object, what: str, at: str) -> int:
    """Return ``value`` as an integer >= 0."""
    if type(value) is not int or value < 0:
        raise refused(f"{what} is {value!r:.100}, not an integer >= 0", at)
    return value


def tensor(value: object, what: str, at: str) -> StoredTensor:
    """Return ``value`` as a tensor."""
    if not isinstance(value, StoredTensor):
        raise refused(f"{what} is a {type(value).__name__}, not a tensor", at)
    return value


def tensors(value: object, what: str, at: str) -> dict[str, StoredTensor]:
    """Return ``value`` as tensors by name."""
    found = mapping(value, what, at)
    if not all(type(name) is str for name in found):
        raise refused(f"a name in {what} is not a string", at)
    return {name: tensor(item, f"{what}[{name!r}]", at) for name, item in found.items()}


def shape_of(value: object, what: str, at: str) -> tuple[int, ...]:
    """Return ``value`` as extents."""
    return tuple(integer(extent, what, at) for extent in items(value, what, at))


DENSE: Final = TorchLayout("torch.strided")
"""The layout of a tensor that has all its elements."""

_MEMBERS_AT_MOST: Final = 100  # a small pickle may name one large state again and again

_Member = TypeVar("_Member")


def members(record: object, order: Sequence[str] = ()) -> Mapping[Any, Any]:
    """Return the members of ``record`` by name, whichever way its class pickles them.

    A plain class gives a dict; a class with slots a pair of dicts, of which one may be None; a named tuple or a frozen
    class with slots its members one after another, which get the names in ``order`` as far as these go.

    Raises TypeError for anything else.
    """
    state = record.state if isinstance(record, Instance) else None
    if type(state) is dict:
        return state
    if type(state) is tuple and len(state) == 2 and all(type(part) in (dict, type(None)) for part in state):
        return ChainMap(*(part for part in state if part is not None))
    if order and isinstance(state, tuple | list):
        return dict(zip(order, state, strict=False))
    raise TypeError("a part of it has no members")


def data_type(record: object) -> TorchDtype | None:
    """Return the data type among the members of ``record``, wherever it stands; None where there is not just one.

    Raises TypeError as `members` does.
    """
    found = _of_type(record, TorchDtype)
    return found[0] if len(found) == 1 else None


def layout(record: object) -> TorchLayout:
    """Return the layout among the members of ``record``, `DENSE` where none is given; TypeError as `members`."""
    return next(iter(_of_type(record, TorchLayout)), DENSE)


def _of_type(record: object, kind: type[_Member]) -> list[_Member]:
    state = record.state if isinstance(record, Instance) else None
    if not isinstance(state, tuple | list) or any(type(part) is dict for part in state[:2]):
        state = members(record).values()
    return [member for member in islice(state, _MEMBERS_AT_MOST) if isinstance(member, kind)]
