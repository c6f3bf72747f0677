"""Layouts: pieces by the definition, refusals, and reads under a layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from generate.cases import Case, refusal
from generate.parents import floats
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.oracle.arithmetic import scaled
from ucp_conformance.oracle.layouts import local_bytes, lower, pieces, view_of

__all__ = ["bad_layout", "good_layout", "layout_cases", "lowered"]

Step = dict[str, Any]


def shard(axis: str, dim: int, rule: str | Sequence[int] = "ceil") -> Step:
    """Return a shard step."""
    how: Step = {"rule": rule} if isinstance(rule, str) else {"sizes": list(rule)}
    return {"kind": "shard", "axis": axis, "dim": dim, **how}


def blocks(dim: int, sizes: Sequence[int], steps: Any = None) -> Step:
    """Return a blocks step."""
    found: Step = {"kind": "blocks", "dim": dim, "sizes": list(sizes)}
    return found if steps is None else {**found, "steps": steps}


FLAT: Step = {"kind": "flatten"}


def join(dim: int) -> Step:
    """Return a join step."""
    return {"kind": "join", "dim": dim}


def only(axis: str, *places: int) -> Step:
    """Return an only step."""
    return {"kind": "only", "axis": axis, "coordinates": list(places)}


def mesh(**axes: int) -> dict[str, Any]:
    """Return a mesh by its sizes."""
    return {"axes": [{"name": name, "size": size} for name, size in axes.items()]}


def view(*shape: int) -> Step:
    """Return a view step."""
    return {"kind": "view", "shape": list(shape)}


def permute(*order: int) -> Step:
    """Return a permute step."""
    return {"kind": "permute", "order": list(order)}


def pad(dim: int, **how: int) -> Step:
    """Return a pad step."""
    return {"kind": "pad", "dim": dim, **how}


def ruled(dim: int, count: int, rule: str = "even") -> Step:
    """Return blocks by a rule."""
    return {"kind": "blocks", "dim": dim, "rule": rule, "count": count}


def ragged(by: str, name: str, *sizes: int) -> dict[str, Any]:
    """Return a mesh of two axes, the size of the second decided by the first."""
    return {"axes": [{"name": by, "size": len(sizes)}, {"name": name, "by": by, "sizes": list(sizes)}]}


GOOD: dict[str, tuple[dict[str, Any], list[Step], tuple[int, ...]]] = {
    "no-axes": (mesh(), [], (2, 3)),
    "replicated": (mesh(a=2), [], (2, 3)),
    "scalar": (mesh(a=2), [], ()),
    "scalar-flat": (mesh(a=2), [FLAT, shard("a", 0)], ()),
    "ceil-even": (mesh(a=2), [shard("a", 0)], (4, 3)),
    "ceil-uneven": (mesh(a=4), [shard("a", 0)], (5, 2)),
    "ceil-more-ranks": (mesh(a=4), [shard("a", 0)], (2,)),
    "ceil-empty": (mesh(a=2), [shard("a", 0)], (0, 3)),
    "even": (mesh(a=3), [shard("a", 1, "even")], (2, 6)),
    "even-zero": (mesh(a=3), [shard("a", 0, "even")], (0,)),
    "balanced": (mesh(a=4), [shard("a", 0, "balanced")], (6, 2)),
    "balanced-few": (mesh(a=4), [shard("a", 0, "balanced")], (2,)),
    "sizes": (mesh(a=3), [shard("a", 0, [3, 0, 2])], (5,)),
    "two-dims": (mesh(a=2, b=2), [shard("a", 0), shard("b", 1)], (3, 5)),
    "same-dim-twice": (mesh(a=2, b=3), [shard("a", 0), shard("b", 0)], (7, 2)),
    "same-dim-other-order": (mesh(a=2, b=3), [shard("b", 0), shard("a", 0)], (7, 2)),
    "middle-dim": (mesh(a=2), [shard("a", 1)], (2, 4, 2)),
    "blocks": (mesh(a=2), [blocks(0, [4, 2, 2]), shard("a", 0)], (8, 2)),
    "blocks-uneven": (mesh(a=2), [blocks(0, [3, 1, 0]), shard("a", 0)], (4, 2)),
    "blocks-last-dim": (mesh(a=2), [blocks(1, [2, 2]), shard("a", 1)], (2, 4)),
    "blocks-own": (mesh(a=2), [blocks(0, [4, 2, 2], [[shard("a", 0)], [], None]), shard("a", 0)], (8,)),
    "blocks-replicated": (mesh(a=2), [blocks(0, [4, 2], [[shard("a", 0)], []])], (6,)),
    "blocks-join": (mesh(a=2, b=2), [blocks(0, [4, 4]), shard("a", 0), join(0), shard("b", 0)], (8,)),
    "strided": (mesh(a=2, b=2), [blocks(0, [2, 2, 2, 2]), shard("b", 0), join(0), shard("a", 0)], (8, 2)),
    "blocks-then-blocks": (mesh(a=2), [blocks(0, [4, 4]), shard("a", 0), join(0), blocks(0, [2, 2])], (8,)),
    "flatten": (mesh(a=3), [FLAT, shard("a", 0)], (4, 3)),
    "flatten-uneven": (mesh(a=4), [FLAT, shard("a", 0)], (3, 5)),
    "flatten-cube": (mesh(a=5), [FLAT, shard("a", 0, "balanced")], (3, 2, 4)),
    "flatten-of-shard": (mesh(t=2, d=2), [shard("t", 1), FLAT, shard("d", 0)], (3, 4)),
    "flatten-of-blocks": (mesh(t=2, d=2), [blocks(0, [4, 2]), shard("t", 0), FLAT, shard("d", 0)], (6, 2)),
    "flatten-blocks": (mesh(d=2), [FLAT, blocks(0, [5, 7]), shard("d", 0)], (4, 3)),
    "only": (mesh(p=3), [only("p", 1)], (2,)),
    "only-two": (mesh(p=3, t=2), [only("p", 0, 2), shard("t", 0)], (4,)),
    "ones": (mesh(a=2), [shard("a", 2)], (1, 1, 2)),
    "four-dims": (mesh(a=2, b=2), [shard("a", 1), shard("b", 3)], (2, 3, 1, 4)),
    "view-experts": (mesh(a=2), [view(3, 2, 4), shard("a", 1)], (6, 4)),
    "view-join": (mesh(a=2), [view(12), shard("a", 0)], (3, 4)),
    "view-heads": (mesh(a=2), [view(3, 2, 2, 2), permute(1, 0, 2, 3), view(12, 2), shard("a", 0)], (12, 2)),
    "view-empty": (mesh(a=2), [view(0, 5), shard("a", 1)], (2, 0)),
    "view-empty-more": (mesh(a=2), [view(0, 7, 5), shard("a", 1)], (3, 0)),
    "view-scalar": (mesh(a=2), [view(1, 1)], ()),
    "view-only": (mesh(p=2, a=2), [only("p", 1), view(2, 3), shard("a", 0)], (6,)),
    "permute": (mesh(a=2), [permute(1, 0), shard("a", 0)], (3, 4)),
    "permute-cube": (mesh(a=2), [permute(2, 0, 1), shard("a", 1)], (2, 3, 2)),
    "permute-flatten": (mesh(a=3), [permute(1, 0), FLAT, shard("a", 0)], (3, 4)),
    "pad-multiple": (mesh(a=2), [pad(0, multiple=4), shard("a", 0, "even")], (5, 2)),
    "pad-to": (mesh(a=3), [pad(1, to=6), shard("a", 1, "even")], (2, 4)),
    "pad-zero": (mesh(a=2), [pad(0, multiple=4), shard("a", 0, "even")], (0, 2)),
    "pad-flat": (mesh(a=4), [FLAT, pad(0, multiple=4), shard("a", 0, "even")], (3, 3)),
    "pad-then-flat": (mesh(a=4), [pad(1, multiple=2), FLAT, shard("a", 0)], (6, 1)),
    "pad-after-shard": (mesh(a=2, b=2), [shard("a", 0), pad(0, multiple=2), shard("b", 0, "even")], (5,)),
    "blocks-rule": (
        mesh(a=2, b=2),
        [shard("a", 0), {"kind": "blocks", "dim": 0, "rule": "ceil", "count": 2}, shard("b", 0), join(0)],
        (7,),
    ),
    "ragged": (ragged("p", "t", 1, 3), [only("p", 1), shard("t", 0)], (5, 2)),
    "ragged-even-where-held": (ragged("p", "t", 1, 2), [only("p", 0), shard("t", 0, "even")], (5, 2)),
    "ragged-both": (ragged("p", "t", 2, 1), [shard("p", 0), shard("t", 0)], (7,)),
    "blocks-ragged-beside": (
        ragged("p", "t", 1, 2),
        [blocks(0, [4, 4], [[shard("t", 0)], [shard("p", 0)]])],
        (8,),
    ),
    "blocks-many-that-touch": (mesh(a=2), [ruled(0, 2048, "ceil"), ruled(1, 2048, "ceil")], (2, 3)),
    "view-regrouped": (mesh(a=3), [view(6, 2), shard("a", 0, "even")], (4, 3)),
    "flatten-padded-blocks": (
        mesh(a=2),
        [pad(1, to=3), FLAT, blocks(0, [5, 1, 3], [[], [shard("a", 0, [0, 1])], []])],
        (3, 2),
    ),
    "flatten-padded-deep": (
        mesh(a=2),
        [pad(2, to=3), FLAT, blocks(0, [2, 1, 9], [[], [shard("a", 0, [0, 1])], []])],
        (2, 2, 2),
    ),
    "ranks": ({**mesh(a=2, b=2), "ranks": [3, 1, 2, 0]}, [shard("a", 0)], (4,)),
    "view-falls-back": (mesh(a=2), [view(2, 3), permute(1, 0), shard("a", 0, [2, 1])], (3, 2)),
    "padding-breaks-group": (
        mesh(a=2),
        [pad(1, to=4), FLAT, blocks(0, [6, 2, 4], [[], [shard("a", 0, [2, 0])], []])],
        (3, 2),
    ),
    "ragged-only": (ragged("p", "t", 2, 3), [shard("p", 0), only("t", 0, 1)], (4, 2)),
}

BAD: dict[str, tuple[dict[str, Any], list[Step], tuple[int, ...], str]] = {
    "axis-unknown": (mesh(a=2), [shard("b", 0)], (4,), "UCP-D-045"),
    "axis-twice": (mesh(a=2), [shard("a", 0), shard("a", 1)], (4, 4), "UCP-D-046"),
    "axis-by-only-and-shard": (mesh(a=2), [only("a", 0), shard("a", 0)], (4,), "UCP-D-046"),
    "axis-in-other-blocks": (
        mesh(a=2),
        [blocks(0, [2, 2], [[shard("a", 0)], None]), shard("a", 1)],
        (4, 4),
        "UCP-D-046",
    ),
    "dim-too-large": (mesh(a=2), [shard("a", 1)], (4,), "UCP-D-045"),
    "dim-of-flat": (mesh(a=2), [FLAT, shard("a", 1)], (4, 2), "UCP-D-045"),
    "position-too-large": (mesh(a=2), [only("a", 2)], (4,), "UCP-D-045"),
    "sizes-count": (mesh(a=2), [shard("a", 0, [4])], (4,), "UCP-D-051"),
    "sizes-sum": (mesh(a=2), [shard("a", 0, [2, 1])], (4,), "UCP-D-051"),
    "blocks-sum": (mesh(a=2), [blocks(0, [2, 1])], (4,), "UCP-D-055"),
    "even-indivisible": (mesh(a=2), [shard("a", 0, "even")], (5,), "UCP-D-052"),
    "even-at-one-coordinate": (
        mesh(a=2, b=2),
        [shard("a", 0, "ceil"), shard("b", 0, "even")],
        (7,),
        "UCP-D-052",
    ),
    "blocks-at-one-coordinate": (mesh(a=2), [shard("a", 0), blocks(0, [2, 1])], (5,), "UCP-D-055"),
    "blocks-in-blocks": (mesh(a=2), [blocks(0, [2, 2]), blocks(0, [2, 2])], (4,), "UCP-D-057"),
    "shard-of-own-blocks": (
        mesh(a=2, b=2),
        [blocks(0, [2, 2], [[shard("a", 0)], []]), shard("b", 0)],
        (4,),
        "UCP-D-053",
    ),
    "blocks-steps-count": (mesh(a=2), [blocks(0, [2, 2], [None])], (4,), "UCP-D-056"),
    "blocks-steps-dim": (mesh(a=2), [blocks(0, [2, 2], [[shard("a", 1)], None])], (4, 4), "UCP-D-056"),
    "join-without-blocks": (mesh(a=2), [join(0)], (4,), "UCP-D-058"),
    "join-twice": (mesh(a=2), [blocks(0, [2, 2]), join(0), join(0)], (4,), "UCP-D-058"),
    "only-descending": (mesh(a=3), [only("a", 2, 0)], (4,), "UCP-D-062"),
    "only-twice": (mesh(a=3), [only("a", 1, 1)], (4,), "UCP-D-062"),
    "by-unknown": (
        {"axes": [{"name": "t", "by": "p", "sizes": [1]}, {"name": "p", "size": 1}]},
        [],
        (4,),
        "UCP-D-042",
    ),
    "by-ragged": (
        {"axes": [*ragged("p", "t", 1, 1)["axes"], {"name": "u", "by": "t", "sizes": [1]}]},
        [],
        (4,),
        "UCP-D-042",
    ),
    "by-sizes-count": (
        {"axes": [{"name": "p", "size": 3}, {"name": "t", "by": "p", "sizes": [1, 2]}]},
        [],
        (4,),
        "UCP-D-043",
    ),
    "by-after": (ragged("p", "t", 1, 2), [shard("t", 0), shard("p", 0)], (4,), "UCP-D-047"),
    "by-after-blocks": (
        ragged("p", "t", 1, 2),
        [blocks(0, [4, 4], [[shard("p", 0), shard("t", 0)], None]), shard("p", 0)],
        (8,),
        "UCP-D-047",
    ),
    "ragged-sizes": (ragged("p", "t", 2, 2), [shard("t", 0, [2, 2])], (4,), "UCP-D-054"),
    "ragged-only": (ragged("p", "t", 1, 2), [only("t", 1)], (4,), "UCP-D-063"),
    "view-late": (mesh(a=2), [shard("a", 0), view(2)], (4,), "UCP-D-048"),
    "permute-late": (mesh(a=2), [FLAT, permute(0)], (4,), "UCP-D-048"),
    "order-short": (mesh(a=2), [permute(0)], (2, 2), "UCP-D-049"),
    "order-twice": (mesh(a=2), [permute(0, 0)], (2, 2), "UCP-D-049"),
    "view-count": (mesh(a=2), [view(5)], (4,), "UCP-D-050"),
    "view-of-nothing": (mesh(a=2), [view(1)], (0,), "UCP-D-050"),
    "view-across": (mesh(a=2), [permute(1, 0), view(2, 6)], (4, 3), "UCP-D-050"),
    "pad-short": (mesh(a=2), [pad(0, to=3)], (4,), "UCP-D-060"),
    "pad-blocks": (mesh(a=2), [blocks(0, [2, 2]), pad(0, to=4)], (4,), "UCP-D-057"),
    "flatten-twice": (mesh(a=2), [FLAT, FLAT], (4,), "UCP-D-061"),
    "axis-name-empty": ({"axes": [{"name": "", "size": 2}]}, [], (4,), "UCP-D-039"),
    "axis-name-twice": (
        {"axes": [{"name": "a", "size": 2}, {"name": "a", "size": 1}]},
        [],
        (4,),
        "UCP-D-039",
    ),
    "ranks-count": ({**mesh(a=2), "ranks": [0]}, [], (4,), "UCP-D-040"),
    "ranks-twice": ({**mesh(a=2), "ranks": [1, 1]}, [], (4,), "UCP-D-040"),
}


TOO_MANY: dict[str, tuple[dict[str, Any], list[Step], tuple[int, ...], str]] = {
    "blocks": (mesh(a=2), [ruled(0, 2**20 + 1)], (2**20 + 1,), "UCP-D-059"),
    "ranges": (
        mesh(a=2, b=2), [ruled(0, 2048), shard("a", 0), ruled(1, 2048), shard("b", 1)], (8192, 8192), "UCP-D-066",
    ),
    "elements": (mesh(a=2), [pad(0, to=2**53 - 1)], (1, 2), "UCP-D-065"),
    "elements-multiple": (mesh(a=2), [pad(0, multiple=2**53 - 1)], (2, 3), "UCP-D-065"),
    "elements-flat": (mesh(a=4), [pad(0, to=2**52), FLAT, shard("a", 0)], (1, 4), "UCP-D-065"),
    "indices": (mesh(a=2), [pad(0, multiple=2**52), shard("a", 0, "even")], (2**52 + 1,), "UCP-D-064"),
}  # fmt: skip


def lowered(
    mesh_: dict[str, Any], steps: list[Step], shape: Sequence[int], place: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the result of the protocol's ``lower``."""
    return {
        "locals": [
            {
                "coordinate": list(coordinate),
                "shape": None if local is None else list(local.shape),
                "pieces": [] if local is None else pieces(local, view_of(steps, shape)),
            }
            for coordinate, local in lower(mesh_, steps, shape, place).items()
        ]
    }


def good_layout(
    name: str,
    mesh_: dict[str, Any],
    steps: list[Step],
    shape: tuple[int, ...],
    place: dict[str, Any] | None = None,
    requirements: Sequence[str] = (),
) -> Case:
    """Return a layout that is lowered, read under, and written."""
    layout = {"mesh": mesh_, "steps": steps, **({} if place is None else {"place": place})}
    result = lowered(mesh_, steps, shape, place)
    data = floats(_size(shape))
    expected = {"lower.json": json.dumps(result).encode() + b"\n"}
    files = []
    for number, (coordinate, local) in enumerate(lower(mesh_, steps, shape, place).items()):
        entry: dict[str, Any] = {"coordinate": list(coordinate), "shape": None, "file": None}
        if local is not None:
            entry |= {"shape": list(local.shape), "file": f"local-{number}.bin"}
            raw = local_bytes(data, 4, local)
            exponent = sum(step["exponent"] for step in steps if step["kind"] == "scale")
            expected[entry["file"]] = scaled(raw, "float32", exponent) if exponent else raw
        files.append(entry)
    checks: list[dict[str, Any]] = [
        {
            "name": "lower", "role": "reader", "level": "reshard", "op": "lower",
            "params": {**layout, "shape": list(shape)}, "expect": {"file": "lower.json"},
        },
        {
            "name": "read", "role": "reader", "level": "reshard", "op": "read",
            "params": {"atom": "w", "slot": "value", **layout},
            "expect": {"dtype": "float32", "locals": files},
        },
        {
            "name": "write", "role": "writer", "level": "reshard", "op": "write",
            "params": {
                "storage": "packed", "chunk_bytes": 16,
                "atoms": [{"name": "w", "slots": {"value": {
                    "dtype": "float32", "shape": list(shape), **layout,
                    "ins": [{"coordinate": f["coordinate"], "in": f["file"]} for f in files if f["file"]],
                }}}],
            },
            "expect": {"written": {"w/value": "whole.bin"}},
        },
    ]  # fmt: skip
    expected["whole.bin"] = data
    draft = Draft([AtomDraft("w", {"value": SlotDraft("float32", shape, data)})], chunk_bytes=16)
    named = ("UCP-R-021", "UCP-D-045", "UCP-D-046", "UCP-D-051", *requirements)
    return Case(f"good/layouts/{name}", f"Layout: {name}", named, checks, draft.files(), expected)


def bad_layout(
    name: str,
    mesh_: dict[str, Any],
    steps: list[Step],
    shape: tuple[int, ...],
    requirement: str,
    place: dict[str, Any] | None = None,
) -> Case:
    """Return a layout that neither lowers nor reads."""
    layout = {"mesh": mesh_, "steps": steps, **({} if place is None else {"place": place})}
    draft = Draft([AtomDraft("alpha", {"value": SlotDraft("uint8", shape, b"\1" * max(1, _size(shape)))})])
    checks = [
        refusal("lower", ["UCP-E-LAYOUT"], params={**layout, "shape": list(shape)}, level="reshard"),
        refusal(
            "read", ["UCP-E-LAYOUT"], level="reshard",
            params={"atom": "alpha", "slot": "value", **layout},
        ),
    ]  # fmt: skip
    return Case(
        f"bad/layouts/{name}", f"Layout: {name}", (requirement, "UCP-R-017"), checks, draft.files(),
        mutates="good/layouts/replicated", mutation=f"Layout: {name}",
    )  # fmt: skip


def layout_cases() -> Iterator[Case]:
    """Yield good and bad cases."""
    for name, (mesh_, steps, shape) in GOOD.items():
        yield good_layout(name, mesh_, steps, shape)
    yield from _within_limits()
    for name, (mesh_, steps, shape, requirement) in TOO_MANY.items():
        check = refusal(
            "lower",
            ["UCP-E-LIMIT"],
            level="reshard",
            params={"mesh": mesh_, "steps": steps, "shape": list(shape)},
        )
        yield Case(
            f"bad/limits/layout-{name}", f"A layout with too many {name}", (requirement, "UCP-R-003"), [check],
            mutates="good/layouts/blocks-rule", mutation=name,
        )  # fmt: skip
    for name, (mesh_, steps, shape, requirement) in BAD.items():
        yield bad_layout(name, mesh_, steps, shape, requirement)


def _within_limits() -> Iterator[Case]:
    """Yield what a limit that was read otherwise would refuse."""
    # 2048 ranges of the dimension and 1024 of the flat tensor: two limits, and not one on the product.
    both = mesh(a=2, b=2)
    steps = [ruled(0, 2048), shard("a", 0), FLAT, ruled(0, 1024), shard("b", 0)]
    data = bytes(number % 251 for number in range(4096))
    found = lower(both, steps, (4096,))[0, 1]
    if found is None:
        raise AssertionError("every coordinate holds something")
    check = {
        "name": "read", "role": "reader", "level": "reshard", "op": "read",
        "params": {"atom": "w", "slot": "value", "mesh": both, "steps": steps},
        "expect": {"dtype": "uint8", "locals": [{"coordinate": [0, 1], "shape": [1024], "file": "local.bin"}]},
    }  # fmt: skip
    draft = Draft([AtomDraft("w", {"value": SlotDraft("uint8", (4096,), data)})])
    yield Case(
        "good/limits/ranges-twice", "Many ranges of a dimension, and many of the flat tensor", ("UCP-D-066",),
        [check], draft.files(), {"local.bin": local_bytes(data, 1, found)},
    )  # fmt: skip
    most, many = 2**53 - 1, 2**20
    one = {"offset": [0], "shape": [1], "local": 0, "strides": [0]}
    # Blocks that touch are one range of each dimension, since none of them is left out.
    touching = {"offset": [0, 0], "shape": [1025, 1024], "local": 0, "strides": [1024, 1]}
    whole = {"offset": [0], "shape": [many], "local": 0, "strides": [1]}
    for name, title, requirement, steps, shape, local, piece in [
        ("blocks-that-touch", "Blocks that touch are one range", "UCP-D-066", [ruled(0, 1025), ruled(1, 1024)], [1025, 1024], [1025, 1024], touching),
        ("layout-blocks", "As many blocks as there may be", "UCP-D-059", [ruled(0, many)], [many], [many], whole),
        ("layout-extent", "An extent as long as it may be", "UCP-D-064", [pad(0, to=most)], [1], [most], one),
        ("layout-elements", "As many elements as a local tensor may have", "UCP-D-065", [pad(1, to=most)], [1, 1], [1, most], {"offset": [0, 0], "shape": [1, 1], "local": 0, "strides": [0, 0]}),
    ]:  # fmt: skip
        result = {"locals": [{"coordinate": [], "shape": local, "pieces": [piece]}]}
        check = {
            "name": "lower", "role": "reader", "level": "reshard", "op": "lower",
            "params": {"mesh": mesh(), "steps": steps, "shape": shape}, "expect": {"file": "lower.json"},
        }  # fmt: skip
        yield Case(
            f"good/limits/{name}", title, (requirement,), [check], None,
            {"lower.json": json.dumps(result).encode() + b"\n"},
        )  # fmt: skip


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
