"""Reading the members of inert records by their names and types.

A class gains members from one release of a framework to the next: nothing here counts them, and what is not asked
for is passed over.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.stand_ins import TorchDtype, TorchLayout

__all__ = ["DENSE", "data_type", "layout", "members"]

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
