"""Ready-made pattern documents, packaged as JSON beside this module."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from ucpformat.errors import error
from ucpformat.patterns.document import Patterns, parse_patterns

__all__ = ["load_patterns", "pattern_names"]

_SUFFIX: Final = ".patterns.json"


@cache
def pattern_names() -> tuple[str, ...]:
    """The names of the ready-made pattern documents, sorted."""
    entries = (entry.name for entry in files(__name__).iterdir())
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in entries if name.endswith(_SUFFIX)))


@cache
def load_patterns(name: str) -> Patterns:
    """The ready-made pattern document called ``name``; UCP-E-PATTERN where there is none."""
    if name not in pattern_names():
        known = ", ".join(pattern_names())
        raise error("UCP-E-PATTERN", f"there are no ready-made patterns {name!r}; there are {known}")
    file = f"{name}{_SUFFIX}"
    return parse_patterns((files(__name__) / file).read_bytes(), at=file)
