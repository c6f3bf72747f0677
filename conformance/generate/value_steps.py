"""Steps that say more than where elements are: partial, scale, local."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from generate.cases import Case, checks_of_good, refusal, validation
from generate.layout_cases import FLAT, Step, bad_layout, good_layout, lowered, mesh, ragged, shard, view
from generate.mutations import INDEX
from generate.parents import floats
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.oracle.arithmetic import reduced, scaled
from ucp_conformance.oracle.bytes_of import ITEM_BYTES

__all__ = ["value_step_cases"]


def partial(axis: str, reduce: str = "sum") -> Step:
    """Return a partial step."""
    return {"kind": "partial", "axis": axis, "reduce": reduce}


def scale(exponent: int) -> Step:
    """Return a scale step."""
    return {"kind": "scale", "exponent": exponent}


def local(resize: str = "refuse") -> Step:
    """Return a local step."""
    return {"kind": "local", "resize": resize}


def value_step_cases() -> Iterator[Case]:
    """Yield good and bad cases."""
    yield from _partial()
    yield from _scale()
    yield from _local()


def _ints(kind: str, *values: int) -> bytes:
    return struct.pack(f"<{len(values)}{kind}", *values)


def _singles(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def _halves(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}e", *values)


def _brains(*values: float) -> bytes:
    return b"".join(struct.pack("<f", value)[2:] for value in values)


NAN_PAYLOAD = bytes.fromhex("0100c0ff")
"""A float32 NaN with a sign and a payload."""

# Data type, reduction, contributions in the order of their positions.
REDUCED: dict[str, tuple[str, str, list[bytes]]] = {
    # In order: (1 + 2^-24 + 2^-24) is not what is left of 1 + 2^-24 rounded twice.
    "float32-sum": ("float32", "sum", [_singles(1, 1e8), _singles(2**-24, 1), _singles(2**-24, -1e8)]),
    "float32-mean": ("float32", "mean", [_singles(1, 2), _singles(0.1, 2), _singles(0.2, 3)]),
    "float32-overflow": ("float32", "sum", [_singles(3e38, 3e38), _singles(3e38, -3e38)]),
    "float32-max": (
        "float32", "max", [_singles(-0.0, 1, 5), _singles(0.0, math.inf, 2) , _singles(-1, 3, -7)],
    ),
    "float32-nan": ("float32", "sum", [_singles(1, math.inf) + NAN_PAYLOAD, _singles(2, -math.inf, 0)]),
    "float32-max-nan": (
        "float32", "max", [_singles(7, 1), NAN_PAYLOAD + _singles(2), _singles(math.nan, 0)],
    ),
    "float64-sum": ("float64", "sum", [struct.pack("<2d", 1, 1e16), struct.pack("<2d", 2**-53, 1)] * 2),
    "float16-sum": ("float16", "sum", [_halves(2048, 60000), _halves(1, 60000), _halves(1, -60000)]),
    # 2^15 + 2^-10 takes 26 bits, which binary32 has not: what a wider accumulator kept would be left over.
    "float16-accumulator": ("float16", "sum", [_halves(32768), _halves(2**-10), _halves(-32768)]),
    "float16-mean": ("float16", "mean", [_halves(32768), _halves(2**-10), _halves(-32768), _halves(0)]),
    "bfloat16-accumulator": ("bfloat16", "sum", [_brains(2.0**30), _brains(1), _brains(-(2.0**30))]),
    "float16-order": ("float16", "sum", [_halves(32768), _halves(-32768), _halves(2**-10)]),
    "float64-order": ("float64", "sum", [struct.pack("<d", x) for x in (1e16, -1e16, 1)]),
    "int8-max": ("int8", "max", [_ints("b", -128, -1, 5), _ints("b", 127, -128, 5)]),
    "bfloat16-mean": ("bfloat16", "mean", [_brains(1, 256, 3), _brains(1, 1, 3), _brains(1.0078125, 1, 4)]),
    "int8-mean": ("int8", "mean", [_ints("b", 1, -1, 127, -128), _ints("b", 2, -2, 127, -128)]),
    "int32-sum": ("int32", "sum", [_ints("i", 2**31 - 1, -5), _ints("i", 1, 5), _ints("i", -1, 1)]),
    "uint64-max": ("uint64", "max", [_ints("Q", 2**64 - 1, 0), _ints("Q", 0, 2**63)]),
    "complex64-sum": ("complex64", "sum", [_singles(1, -1), _singles(2**-24, 0.5), _singles(2**-24, 0.5)]),
}  # fmt: skip


def _writing(
    name: str, title: str, requirements: Sequence[str], slot: dict[str, Any], ins: Sequence[tuple[Any, bytes]],
    result: bytes | str,
) -> Case:  # fmt: skip
    """Return a slot written from local tensors, or refused with a code."""
    expected = {f"in-{number}.bin": raw for number, (_, raw) in enumerate(ins)}
    given = [
        {"coordinate": list(coordinate), "in": f"in-{number}.bin"}
        for number, (coordinate, _) in enumerate(ins)
    ]
    params = {
        "storage": "packed", "chunk_bytes": 64,
        "atoms": [{"name": "w", "slots": {"value": {**slot, "ins": given}}}],
    }  # fmt: skip
    if isinstance(result, str):
        check = refusal("write", [result], params=params, level="reshard", role="writer")
        return Case(f"bad/layouts/{name}", title, requirements, [check], {}, expected, mutates="good/layouts/partial", mutation=title)  # fmt: skip
    expected["whole.bin"] = result
    check = {
        "name": "write", "role": "writer", "level": "reshard", "op": "write",
        "params": params, "expect": {"written": {"w/value": "whole.bin"}},
    }  # fmt: skip
    return Case(f"good/layouts/{name}", title, requirements, [check], {}, expected)


def _partial() -> Iterator[Case]:
    both = mesh(a=2, b=2)
    steps = [partial("b", "mean"), shard("a", 0)]
    params = {"mesh": both, "steps": steps, "shape": [3, 2]}
    draft = Draft([AtomDraft("w", {"value": SlotDraft("float32", (3, 2), floats(6))})])
    result = lowered(both, steps, (3, 2))
    yield Case(
        "good/layouts/partial", "Layout: partial", ("UCP-R-021", "UCP-R-018"),
        [
            {"name": "lower", "role": "reader", "level": "reshard", "op": "lower", "params": params, "expect": {"file": "lower.json"}},
            refusal(
                "read", ["UCP-E-LAYOUT"], level="reshard",
                params={"atom": "w", "slot": "value", "mesh": both, "steps": params["steps"]},
            ),
        ],
        draft.files(), {"lower.json": json.dumps(result).encode() + b"\n"},
    )  # fmt: skip
    for name, (dtype, reduce, contributions) in REDUCED.items():
        count = len(contributions)
        shape = len(contributions[0]) // ITEM_BYTES[dtype]
        slot = {
            "dtype": dtype, "shape": [shape], "mesh": mesh(a=count, b=1), "steps": [partial("a", reduce)],
        }  # fmt: skip
        # The order is that of the coordinates, not that in which they come.
        ins = [([number, 0], raw) for number, raw in reversed(list(enumerate(contributions)))]
        yield _writing(
            f"reduced-{name}", f"Reduction: {name}", ("UCP-D-078", "UCP-D-079"), slot, ins,
            reduced(contributions, dtype, reduce),
        )  # fmt: skip
    # Two partial axes: row-major in the order of the mesh, whatever the order of steps.
    parts = [_singles(1, 2**25), _singles(1e8, 1), _singles(-1e8, 1), _singles(1, -(2**25))]
    two = {"dtype": "float32", "shape": [2], "mesh": both, "steps": [partial("b"), partial("a")]}
    where = [[0, 0], [0, 1], [1, 0], [1, 1]]
    yield _writing(
        "reduced-two-axes", "Reduction over two axes", ("UCP-D-077", "UCP-D-079"), two,
        list(zip(where, parts, strict=True)), reduced(parts, "float32", "sum"),
    )  # fmt: skip
    overflow = [_ints("b", 100), _ints("b", 28)]
    yield _writing(
        "reduced-int8-overflow", "A sum of integers that does not fit", ("UCP-D-080",),
        {"dtype": "int8", "shape": [1], "mesh": mesh(a=2), "steps": [partial("a")]},
        [([number], raw) for number, raw in enumerate(overflow)], "UCP-E-INEXACT",
    )  # fmt: skip
    yield bad_layout("partial-ragged", ragged("p", "t", 1, 2), [partial("t")], (4,), "UCP-D-076")
    yield bad_layout("partial-two-reductions", both, [partial("a"), partial("b", "max")], (4,), "UCP-D-077")
    yield bad_layout("partial-axis-used", both, [shard("a", 0), partial("a")], (4,), "UCP-D-046")
    for dtype, reduce in (("bool", "max"), ("int4", "sum"), ("float8_e4m3fn", "mean"), ("complex64", "max")):
        yield _stored(
            f"partial-{dtype}", "UCP-D-078", SlotDraft(dtype, (4,), bytes(4 * ITEM_BYTES[dtype]), layout=0),
            {"mesh": 0, "steps": [partial("a", reduce)]},
        )  # fmt: skip
    layouts = [{"mesh": 0, "steps": [partial("b", "mean"), shard("a", 0)]}]
    draft = Draft(
        [AtomDraft("w", {"value": SlotDraft("bfloat16", (4,), _brains(1, 2, 3, 4), layout=0)})],
        root={"meshes": [both], "layouts": layouts},
    )
    checks, expected, _ = checks_of_good(draft)
    yield Case(
        "good/layouts/stored-partial", "A slot that is a mean of copies", ("UCP-D-078",), checks, draft.files(), expected
    )  # fmt: skip


def _stored(
    name: str, requirement: str, slot: SlotDraft, layout: dict[str, Any], at: str = f"{INDEX}#/atoms/0/slots/value"
) -> Case:  # fmt: skip
    """Return a slot whose layout does not suit it: the place is either's."""
    draft = Draft([AtomDraft("w", {"value": slot})], root={"meshes": [mesh(a=2, b=2)], "layouts": [layout]})
    requirements = (requirement, "UCP-V-003") if at.startswith("index") else (requirement,)
    return Case(
        f"bad/layouts/stored-{name}".replace("_", "-"), f"A slot and its layout: {name}", requirements,
        [validation(["UCP-E-LAYOUT"], ["ucp.json#/layouts/0", f"{INDEX}#/atoms/0/slots/value"])], draft.files(),
        mutates="good/layouts/stored-partial", mutation=name,
    )  # fmt: skip


def _scale() -> Iterator[Case]:
    both = mesh(a=2, b=2)
    named = ("UCP-D-081", "UCP-R-019")
    yield good_layout("scale", both, [shard("a", 0), scale(3)], (3, 2), requirements=named)
    yield good_layout("scale-down", both, [scale(-1), view(2, 3), shard("a", 0)], (6,), requirements=named)
    yield good_layout("scale-none", both, [scale(0)], (), requirements=named)
    yield good_layout("scale-empty", both, [scale(4096)], (0, 2), requirements=named)
    where = {"offsets": [1], "totals": [8]}
    group: Step = {"kind": "concat", "group": "g"}
    yield good_layout(
        "scale-in-buffer", both, [FLAT, group, shard("a", 0), scale(1)], (5,), where, requirements=named
    )
    special = _singles(math.inf, -math.inf, -0.0, 0.0, 2.0**-149, 2.0**127) + NAN_PAYLOAD
    slots: dict[str, tuple[str, int, bytes]] = {
        "float16": ("float16", -3, _halves(2**-14, -60000, 0.5)),
        "bfloat16": ("bfloat16", 7, _brains(1.5, -(2.0**-126), 2.0**120)),
        "float64": ("float64", -1000, struct.pack("<2d", 2.0**900, -(2.0**-70))),
        "complex64": ("complex64", 5, _singles(1.5, -2, 0, 2.0**-140)),
        "complex128": ("complex128", -2, struct.pack("<4d", 1.5, -2, 0, math.inf)),
        "special": ("float32", 0, special),
        "special-up": ("float32", 20, special[:16] + _singles(2.0**-149) + NAN_PAYLOAD),
    }
    target = {"mesh": both, "steps": [scale(0)]}
    for name, (dtype, exponent, data) in slots.items():
        yield _scaled_read(name, dtype, data, exponent)
    inexact: dict[str, tuple[str, int, bytes]] = {
        "overflow": ("float32", 1, _singles(2.0**127)),
        "underflow": ("float32", -1, _singles(1, 2.0**-149)),
        "digits": ("float16", -1, _halves(3 * 2**-24)),
        "far": ("float32", 4096, _singles(1)),
        "far-down": ("float64", -4096, struct.pack("<d", 1)),
        "part": ("complex64", 1, _singles(0, 2.0**127)),
    }
    for name, (dtype, exponent, data) in inexact.items():
        draft = Draft(
            [AtomDraft("alpha", {"value": SlotDraft(dtype, (len(data) // ITEM_BYTES[dtype],), data)})]
        )
        params = {"atom": "alpha", "slot": "value", **target, "steps": [scale(exponent)]}
        yield Case(
            f"bad/layouts/scale-{name}", f"A factor that is not exact: {name}", ("UCP-R-019",),
            [refusal("read", ["UCP-E-INEXACT"], params=params, level="reshard")], draft.files(),
            mutates="good/layouts/scale", mutation=name,
        )  # fmt: skip
    # 80000 is beyond float16, and half of infinity is infinity; half of each first would be 40000.
    yield _writing(
        "reduced-then-scaled", "A reduction whose factor is taken out of the sum", ("UCP-D-079", "UCP-W-023"),
        {"dtype": "float16", "shape": [1], "mesh": mesh(a=2), "steps": [partial("a"), scale(1)]},
        [([number], _halves(40000)) for number in range(2)], _halves(math.inf),
    )  # fmt: skip
    yield _writing(
        "scale-write-inexact", "Local tensors that a factor does not divide", ("UCP-W-023",),
        {"dtype": "float32", "shape": [1], "mesh": mesh(a=1), "steps": [scale(1)]},
        [([0], _singles(2.0**-149))], "UCP-E-INEXACT",
    )  # fmt: skip
    yield bad_layout("scale-twice", both, [scale(1), scale(-1)], (4,), "UCP-D-081")
    for dtype in ("int32", "bool", "float8_e5m2"):
        yield _stored(
            f"scale-{dtype}", "UCP-D-082", SlotDraft(dtype, (4,), bytes(4 * ITEM_BYTES[dtype]), layout=0),
            {"mesh": 0, "steps": [scale(1)]},
        )  # fmt: skip
    draft = Draft([AtomDraft("alpha", {"value": SlotDraft("int32", (1,), _ints("i", 1))})])
    params = {"atom": "alpha", "slot": "value", "mesh": both, "steps": [scale(1)]}
    yield Case(
        "bad/layouts/scale-of-integers", "A factor for integers", ("UCP-D-082", "UCP-R-017"),
        [refusal("read", ["UCP-E-LAYOUT"], params=params, level="reshard")], draft.files(),
        mutates="good/layouts/scale", mutation="A factor for integers",
    )  # fmt: skip


def _scaled_read(name: str, dtype: str, data: bytes, exponent: int) -> Case:
    """Return a slot read under a factor."""
    count = len(data) // ITEM_BYTES[dtype]
    draft = Draft([AtomDraft("w", {"value": SlotDraft(dtype, (count,), data)})], chunk_bytes=16)
    check = {
        "name": "read", "role": "reader", "level": "full" if dtype.startswith("complex") else "reshard", "op": "read",
        "params": {"atom": "w", "slot": "value", "mesh": mesh(a=1), "steps": [scale(exponent)]},
        "expect": {
            "dtype": dtype, "locals": [{"coordinate": [0], "shape": [count], "file": "local.bin"}],
        },
    }  # fmt: skip
    return Case(
        f"good/layouts/scale-{name}", f"A factor for elements: {name}", ("UCP-R-019", "UCP-D-082"), [check], draft.files(),
        {"local.bin": scaled(data, dtype, exponent)},
    )  # fmt: skip


def _local() -> Iterator[Case]:
    both = mesh(a=2, b=3)
    named = ("UCP-D-083", "UCP-D-084", "UCP-R-020")
    yield good_layout("local", both, [local()], (6, 2), requirements=named)
    yield good_layout("local-scalar", mesh(), [local("keep")], (1,), requirements=named)
    yield good_layout("local-empty", mesh(a=2), [local("keep")], (2, 0, 3), requirements=named)
    yield good_layout("local-ragged", ragged("p", "t", 2, 1), [local()], (3, 1, 2), requirements=named)
    yield good_layout("local-ranks", {**mesh(a=2), "ranks": [1, 0]}, [local()], (2, 2), requirements=named)
    yield bad_layout("local-beside", both, [local(), shard("a", 0)], (6, 2), "UCP-D-083")
    yield bad_layout("local-behind", both, [scale(0), local()], (6, 2), "UCP-D-083")
    yield bad_layout("local-count", both, [local()], (5, 2), "UCP-D-084")
    yield bad_layout("local-dimensions", both, [local()], (), "UCP-D-084")
    yield _stored(
        "local-count", "UCP-D-084", SlotDraft("uint8", (3,), b"\1\2\3", layout=0), {"mesh": 0, "steps": [local()]},
        "ucp.json#/layouts/0",
    )  # fmt: skip
    for resize in ("refuse", "keep"):
        draft = Draft(
            [AtomDraft("rng", {"value": SlotDraft("uint8", (6, 2), bytes(range(1, 13)), layout=0)})],
            root={"meshes": [both], "layouts": [{"mesh": 0, "steps": [local(resize)]}]},
        )
        checks, expected, _ = checks_of_good(draft)

        def under(name: str, mesh_: dict[str, Any], steps: list[Step]) -> dict[str, Any]:
            params = {"atom": "rng", "slot": "value", "mesh": mesh_, "steps": steps}
            return {"name": name, "role": "reader", "level": "reshard", "op": "read", "params": params}

        def given(check: dict[str, Any], *entries: tuple[list[int], int]) -> dict[str, Any]:
            files = []
            for coordinate, entry in entries:
                expected[f"entry-{entry}.bin"] = bytes([2 * entry + 1, 2 * entry + 2])  # noqa: B023
                files.append({"coordinate": coordinate, "shape": [2], "file": f"entry-{entry}.bin"})
            return {**check, "expect": {"dtype": "uint8", "locals": files}}

        def refused(check: dict[str, Any]) -> dict[str, Any]:
            return {**check, "expect": {"error": {"codes": ["UCP-E-MISMATCH"]}}}

        same = {**both, "ranks": [5, 4, 3, 2, 1, 0]}
        checks.append(given(under("same-axes", same, [local()]), ([0, 2], 2), ([1, 0], 3)))
        other = under("as-many", mesh(x=6), [local()])
        checks.append(refused(other) if resize == "refuse" else given(other, ([4], 4)))
        fewer = under("fewer", mesh(x=3), [local()])
        checks += [refused(fewer), refused(under("replicated", both, []))]
        checks.append(refused(under("split", both, [shard("a", 0)])))
        # Of two reasons the layout's own comes first (17.2).
        pending = under("pending", both, [partial("a")])
        checks.append({**pending, "expect": {"error": {"codes": ["UCP-E-LAYOUT"]}}})
        yield Case(
            f"good/layouts/stored-local-{resize}", f"Entries of each coordinate's own: {resize}",
            ("UCP-D-084", "UCP-R-020"), checks, draft.files(), expected,
        )  # fmt: skip
