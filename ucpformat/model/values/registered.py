"""The defined types of ``$object`` (SPEC section 15.1), between Python objects and plain content."""

from __future__ import annotations

import datetime
import os
import pathlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import UcpError
from ucpformat.model.dtype import dtype_of
from ucpformat.model.values.content import NamedValue, TensorValue, array_of, check_tensor, element_bytes
from ucpformat.model.values.keys import check_hashes
from ucpformat.model.values.per_rank import ON_RESIZE, PerRankValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["BY_NAME", "NUMPY_SCALAR", "ORDERED_DICT", "Registered", "is_spelled_otherwise", "registered"]


@dataclass(frozen=True, slots=True)
class Registered:
    """A type, its name, and the two ways between an instance and plain content.

    ``to_plain`` raises ValueError for an instance that its content cannot tell in full, ``from_plain`` for
    content that is not what ``to_plain`` gives.
    """

    name: str
    cls: type
    to_plain: Callable[[Any], object]
    from_plain: Callable[[Any], object]


def registered(obj: object) -> Registered | None:
    """Return the entry for exactly the type of ``obj``."""
    if isinstance(obj, np.generic):
        return NUMPY_SCALAR
    return _BY_TYPE.get(type(obj))


def _dict_to(value: OrderedDict[object, object]) -> object:
    return [[key, item] for key, item in value.items()]


def _dict_from(content: object) -> object:
    if type(content) is not list or any(type(pair) is not list or len(pair) != 2 for pair in content):
        raise ValueError("an OrderedDict is an array of pairs")
    try:
        check_hashes(key for key, _ in content)
        value = OrderedDict((key, item) for key, item in content)
    except TypeError:
        raise ValueError("a key of the OrderedDict is mutable") from None
    if len(value) != len(content):
        raise ValueError("two keys of the OrderedDict are equal")
    return value


def _zone_is_offset(zone: datetime.tzinfo | None) -> bool:
    """Return whether the ISO text tells all there is to the time zone."""
    if zone is None:
        return True
    if type(zone) is not datetime.timezone:
        return False
    offset = zone.utcoffset(None)
    # A name of its own would be lost; seconds are beyond ISO 8601, and CPython misreads fractions of one.
    return str(zone) == str(datetime.timezone(offset)) and not offset % datetime.timedelta(minutes=1)


def _instant_to(value: datetime.datetime | datetime.time) -> object:
    if not _zone_is_offset(value.tzinfo) or value.fold:
        raise ValueError(
            "its time zone is more than an offset in minutes; convert it with astimezone(datetime.timezone.utc)"
        )
    return value.isoformat()


def _iso_from(cls: type[datetime.datetime | datetime.date | datetime.time]) -> Callable[[Any], object]:
    def read(content: object) -> object:
        if type(content) is str:
            value = cls.fromisoformat(content)
            zone = getattr(value, "tzinfo", None)
            if value.isoformat() == content and _zone_is_offset(zone):
                return value
        raise ValueError("not the ISO 8601 text in the form that the specification states")

    return read


def _delta_to(value: datetime.timedelta) -> object:
    return (value.days, value.seconds, value.microseconds)


def _delta_from(content: object) -> object:
    if type(content) is tuple and len(content) == 3 and all(type(part) is int for part in content):
        try:
            value = datetime.timedelta(*content)
        except OverflowError:
            raise ValueError("the timedelta is out of range") from None
        if _delta_to(value) == content:
            return value
    raise ValueError("a timedelta is a $tuple of days, seconds and microseconds, normalised")


def _path_from(cls: type[pathlib.PurePath]) -> Callable[[Any], object]:
    def read(content: object) -> object:
        if type(content) is not str:
            raise ValueError("a path is a string")
        value = cls(content)
        # What pathlib would write otherwise, such as `a//b`, stays as it is.
        return value if str(value) == content else NamedValue(f"pathlib.{cls.__name__}", content)

    return read


def is_spelled_otherwise(value: NamedValue) -> bool:
    """Return whether this is a path that pathlib would write otherwise, which only a `NamedValue` keeps."""
    entry = BY_NAME.get(value.type)
    is_path = entry is not None and issubclass(entry.cls, pathlib.PurePath)
    return is_path and type(value.value) is str and str(entry.cls(value.value)) != value.value  # type: ignore[union-attr]


def _scalar_to(value: np.generic) -> object:
    array = np.asarray(value)
    try:
        entry = dtype_of(array.dtype)
    except UcpError as problem:
        raise ValueError(problem.message) from None
    return (entry.name, element_bytes(array, entry))


def _scalar_from(content: object) -> object:
    if type(content) is not tuple or [type(part) for part in content] != [str, bytes]:
        raise ValueError("a numpy.scalar is a $tuple of a data type name and $bytes")
    tensor = TensorValue(content[0], (), content[1])
    try:
        check_tensor(tensor)
    except UcpError as problem:
        raise ValueError(problem.message) from None
    return array_of(tensor)[()]


def _per_rank_to(value: PerRankValues) -> object:
    plain = {"axis": value.axis, "entries": list(value.entries), "on_resize": value.on_resize}
    _per_rank_from(plain)
    return plain


def _per_rank_from(content: object) -> object:
    if type(content) is not dict or content.keys() != {"axis", "entries", "on_resize"}:
        raise ValueError("a PerRank has the members axis, entries and on_resize")
    axis, entries, on_resize = content["axis"], content["entries"], content["on_resize"]
    if type(axis) is not str or not axis:
        raise ValueError("the axis of a PerRank is a non-empty string")
    if type(entries) is not list or not entries:
        raise ValueError("a PerRank has a list of at least one entry")
    if type(on_resize) is not str or on_resize not in ON_RESIZE:
        raise ValueError(f"on_resize is one of {', '.join(ON_RESIZE)}")
    if on_resize == "resplit" and not all(type(entry) is int and entry >= 0 for entry in entries):
        raise ValueError("entries of a resplit are integers that are not negative")
    return PerRankValues(tuple(entries), on_resize, axis)


def _path(cls: type[pathlib.PurePath]) -> Registered:
    return Registered(f"pathlib.{cls.__name__}", cls, str, _path_from(cls))


NUMPY_SCALAR: Final = Registered("numpy.scalar", np.generic, _scalar_to, _scalar_from)
ORDERED_DICT: Final = Registered("collections.OrderedDict", OrderedDict, _dict_to, _dict_from)
_TYPES: Final = (
    NUMPY_SCALAR,
    ORDERED_DICT,
    Registered("datetime.datetime", datetime.datetime, _instant_to, _iso_from(datetime.datetime)),
    Registered("datetime.date", datetime.date, datetime.date.isoformat, _iso_from(datetime.date)),
    Registered("datetime.time", datetime.time, _instant_to, _iso_from(datetime.time)),
    Registered("datetime.timedelta", datetime.timedelta, _delta_to, _delta_from),
    Registered("ucp.PerRank", PerRankValues, _per_rank_to, _per_rank_from),
    _path(pathlib.PurePosixPath),
    _path(pathlib.PureWindowsPath),
    # The concrete class of the other system cannot be made; it stays a NamedValue here.
    _path(pathlib.WindowsPath if os.name == "nt" else pathlib.PosixPath),
)

BY_NAME: Final[Mapping[str, Registered]] = {entry.name: entry for entry in _TYPES}
_BY_TYPE: Final[Mapping[type, Registered]] = {entry.cls: entry for entry in _TYPES}
