"""What numbers the functions of this package take."""

from __future__ import annotations

from math import isfinite, isnan
from numbers import Real
from typing import TYPE_CHECKING

from ucpformat.errors import error

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["is_number", "require_kind", "require_positive", "require_seconds"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number, of Python or of numpy; True and False are none, nor is NaN."""
    return type(value) is not bool and isinstance(value, Real) and not isnan(value)


def require_positive(**numbers: object) -> None:
    """Refuse what is no finite number above 0, by name; raises ``UCP-E-LIMIT``."""
    for name, number in numbers.items():
        if not (is_number(number) and isfinite(number) and number > 0):
            raise error("UCP-E-LIMIT", f"{name}= is a number above 0, not {number!r}", at=name)


def require_seconds(**numbers: object) -> None:
    """Refuse what is no finite number, or is below 0, by name; raises ``UCP-E-LIMIT``."""
    for name, number in numbers.items():
        if not (is_number(number) and isfinite(number) and number >= 0):
            raise error("UCP-E-LIMIT", f"{name}= is a number of seconds, not {number!r}", at=name)


def require_kind(kind: type, **values: object) -> None:
    """Refuse values of another kind than a class of this package, by name; raises ``UCP-E-MISMATCH``."""
    for name, value in values.items():
        if not isinstance(value, kind):
            raise error("UCP-E-MISMATCH", f"{name}= is a {kind.__name__}, not {value!r}", at=name)
