"""Ready-made pattern documents and atom maps, packaged as JSON beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from ucpformat.errors import error
from ucpformat.patterns.atom_map_document import AtomMapDocument, parse_atom_map
from ucpformat.patterns.document import Patterns, parse_patterns

__all__ = ["atom_map_names", "load_atom_map", "load_patterns", "pattern_names"]

_PATTERNS: Final = ".patterns.json"
_ATOM_MAP: Final = ".atom-map.json"


def pattern_names() -> tuple[str, ...]:
    """Return the names of the ready-made pattern documents, sorted."""
    return _names(_PATTERNS)


def atom_map_names() -> tuple[str, ...]:
    """Return the names of the ready-made atom maps, sorted."""
    return _names(_ATOM_MAP)


@cache
def load_patterns(name: str) -> Patterns:
    """Return the ready-made pattern document called ``name``; UCP-E-PATTERN where there is none."""
    return parse_patterns(_content(name, _PATTERNS), at=name + _PATTERNS)


@cache
def load_atom_map(name: str) -> AtomMapDocument:
    """Return the ready-made atom map called ``name``; UCP-E-PATTERN where there is none."""
    return parse_atom_map(_content(name, _ATOM_MAP), at=name + _ATOM_MAP)


@cache
def _names(suffix: str) -> tuple[str, ...]:
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(suffix) for name in entries if name.endswith(suffix)))


def _content(name: str, suffix: str) -> bytes:
    known = _names(suffix)
    if name not in known:
        raise error(
            "UCP-E-PATTERN", f"there is no ready-made document {name!r}; there are {', '.join(known)}"
        )
    return (files(__name__) / (name + suffix)).read_bytes()
