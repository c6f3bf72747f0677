"""Small changes to JSON documents, for properties about what a schema and a parser both refuse."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

LEAVES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 9, 10, 15, 16, 22, 255, 2**30, 2**31, 2**53 - 1, -131072, 0.5, 1.0, 1e-300,
    "", "x", "a", "b", "ucp", "plain", "packed", "ceil", "shard", "flatten", "join", "concat",
    "partial", "scale", "local", "mean", "keep", 4096, -4097, "gzip", "zstd", "blosc",
    "float32", "noshuffle", "é", "a\n", "sha256:" + "0" * 64, "sha256:" + "0" * 64 + "\n",
    "crc32c-tree:" + "f" * 64, [], [0], [1, 0], ["a"], [None], {}, {"kind": "flatten"}, {"x": 1},
]  # fmt: skip
NAMES = [
    "kind", "axis", "dim", "rule", "sizes", "steps", "mesh", "packs", "name", "configuration", "layout",
    "annotations", "extra", "", "a/b~c", "by", "size", "count", "shape", "order", "to", "multiple", "place",
    "offsets", "totals", "axes", "group", "reduce", "exponent", "resize",
]  # fmt: skip


def containers(value: Any) -> list[Any]:
    """Every array and object in ``value``, itself first."""
    if not isinstance(value, dict | list):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [value, *(node for item in items for node in containers(item))]


@st.composite
def mutated(draw: st.DrawFn, documents: list[Any]) -> Any:
    """One of ``documents`` after no to three changes."""
    value = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(0, 3))):
        value = _change(draw, value)
    return value


def _change(draw: st.DrawFn, value: Any) -> Any:
    nodes = containers(value)
    if not nodes or draw(st.integers(0, 40)) == 0:
        return copy.deepcopy(draw(st.sampled_from(LEAVES)))
    node = nodes[draw(st.integers(0, len(nodes) - 1))]
    leaf = copy.deepcopy(draw(st.sampled_from(LEAVES)))
    places: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
    operation = draw(st.sampled_from(["replace", "drop", "add", "rename", "nudge"]))
    if operation == "add" or not places:
        if isinstance(node, dict):
            node[draw(st.sampled_from(NAMES))] = leaf
        else:
            node.append(copy.deepcopy(draw(st.sampled_from([leaf, *node]))))
        return value
    place = draw(st.sampled_from(places))
    if operation == "drop":
        del node[place]
    elif operation == "rename" and isinstance(node, dict):
        node[draw(st.sampled_from(NAMES))] = node.pop(place)
    elif operation == "nudge" and type(node[place]) in (int, float):
        node[place] = min(node[place] + draw(st.sampled_from([-1, 1, 0.5, 2**31])), 2**53 - 1)
    else:
        node[place] = leaf
    return value
