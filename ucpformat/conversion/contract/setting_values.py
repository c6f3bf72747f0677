"""Values of settings, which the command line has as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from ucpformat.errors import error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["named_document", "named_integers"]

_SUFFIX: Final = ".json"
_Document = TypeVar("_Document")
_Parsed = TypeVar("_Parsed", covariant=True)


def named_integers(text: str, *, at: str) -> dict[str, int]:
    """``a=1,b=2`` as a dict. Raises ``UCP-E-PATTERN`` for anything else."""
    integers = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if not value.isdecimal() or not value.isascii() or len(value) > 15:
            raise error("UCP-E-PATTERN", f"{part!r} is not NAME=INTEGER", at=at)
        integers[name.strip()] = int(value)
    return integers


class _Parse(Protocol[_Parsed]):
    def __call__(self, data: bytes, *, at: str) -> _Parsed: ...


def named_document(
    name: str, what: str, names: Sequence[str], load: Callable[[str], _Document], parse: _Parse[_Document]
) -> _Document:
    """A ready-made document by its name, or that of a file ``*.json``; ``what``, "the patterns", is said of it.

    Raises:
        UcpError: ``UCP-E-PATTERN`` for a file that cannot be read, what ``load`` and ``parse`` raise.
    """
    if not name.endswith(_SUFFIX):
        return load(name)
    try:
        data = Path(name).read_bytes()
    except OSError as problem:
        raise error(
            "UCP-E-PATTERN",
            f"{what} cannot be read ({problem.strerror}); ready-made are {', '.join(names)}",
            at=name,
        ) from None
    return parse(data, at=name)
