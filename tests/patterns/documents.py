"""Pattern documents for tests, as JSON."""

from __future__ import annotations

import json
from typing import Any

from ucpformat.patterns import AtomMapDocument, Patterns, parse_atom_map, parse_patterns

ENVELOPE: dict[str, Any] = {
    "format": "ucp",
    "format_version": 0,
    "read_features": [],
    "write_features": [],
    "extensions": {},
    "annotations": {},
}
TP: dict[str, Any] = {"axes": [{"name": "tp", "size": "=tp"}]}


def document(*rules: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A document with these rules over one mesh with the axis ``tp``."""
    return {
        **ENVELOPE,
        "kind": "patterns",
        "parameters": [{"name": "tp", "default": 2}],
        "meshes": [TP],
        "rules": list(rules),
        **changes,
    }


def rule(match: str | list[str], *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A rule for atoms of these names."""
    return {"match": match, "layout": {"mesh": 0, "steps": list(steps)}, **more}


def shard(dim: int | str = 0, **how: Any) -> dict[str, Any]:
    """A shard of ``dim`` over ``tp``, in equal parts unless ``how`` says otherwise."""
    return {"kind": "shard", "axis": "tp", "dim": dim, **(how or {"rule": "even"})}


def parsed(*rules: dict[str, Any], **changes: Any) -> Patterns:
    """`document`, parsed from its bytes."""
    return parse_patterns(json.dumps(document(*rules, **changes)).encode())


def atom_map(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An atom map with these entries, and the parameter ``n``, which is 2 unless given."""
    return {
        **ENVELOPE,
        "kind": "atom-map",
        "parameters": [{"name": "n", "default": 2}],
        "entries": list(entries),
        **changes,
    }


def parsed_map(*entries: dict[str, Any], **changes: Any) -> AtomMapDocument:
    """`atom_map`, parsed from its bytes."""
    return parse_atom_map(json.dumps(atom_map(*entries, **changes)).encode())
