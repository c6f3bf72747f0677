"""Bad increments: shared packs (SPEC sections 8.5 and 16.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generate.cases import Case
from generate.mutations import PACK, PACKS, case, cell, drop, flipped, put, several, shorter, without
from ucp_conformance.drafting import Draft

__all__ = ["increment_cases"]

READ: dict[str, Any] = {"ops": ("read",), "params": {"atom": "alpha", "slot": "exp_avg"}}


def increment_cases() -> Iterator[Case]:
    """Yield all of them."""
    options: dict[str, Any] = {"parent": "increment", "features": ("incremental",)}
    yield case(
        "increments/undeclared", "A shared pack that no feature announces", ("UCP-D-009",), "UCP-E-FEATURE-SET",
        put("root", "read_features", to=[]), at="ucp.json#/read_features", ops=(), **options,
    )  # fmt: skip
    yield case(
        "increments/superfluous", "The feature, and no shared pack", ("UCP-D-009",), "UCP-E-FEATURE-SET",
        put("root", "read_features", to=["incremental"]), at="ucp.json#/read_features", ops=(),
        features=("incremental",),
    )  # fmt: skip
    for name, value in (("false", False), ("null", None), ("one", 1), ("base", "step-1.ucp")):
        yield case(
            f"increments/shared-{name}", f"A pack that is shared: {value!r}", ("UCP-R-014",), "UCP-E-SCHEMA",
            put("packs", "packs", 0, "shared", to=value), at=f"{PACKS}#/packs/0/shared", **READ, **options,
        )  # fmt: skip
    yield case(
        "increments/own-padding", "Bytes of its own pack that belong to no segment", ("UCP-D-108",),
        "UCP-E-PADDING", own_padding, ops=(), **options,
    )  # fmt: skip
    yield case(
        "increments/not-shared", "A pack with bytes of others, which does not say that it is shared",
        ("UCP-D-107", "UCP-R-028"), "UCP-E-SEGMENT", several(drop("packs", "packs", 0, "shared"), put("root", "read_features", to=[])),
        also=True, **READ, **options,
    )  # fmt: skip
    yield case(
        "increments/alignment", "A segment of a shared pack at an offset that its elements cannot have",
        ("UCP-D-136", "UCP-R-028"), "UCP-E-SEGMENT", cell(0, 2, 14), also=True, **READ, **options,
    )  # fmt: skip
    yield case(
        "increments/own-alignment", "A segment of its own pack that is not aligned",
        ("UCP-D-107", "UCP-R-028"), "UCP-E-SEGMENT", own_alignment, also=True, **READ, **options,
    )  # fmt: skip
    yield case(
        "increments/missing", "A shared pack is gone", ("UCP-D-099",), "UCP-E-MISSING", without(PACK), at=PACK,
        **READ, **options,
    )  # fmt: skip
    yield case(
        "increments/shorter", "A shared pack is shorter than recorded", ("UCP-D-099",), "UCP-E-LENGTH",
        shorter(PACK), at=PACK, ops=(), also=True, **options,
    )  # fmt: skip
    yield case(
        "increments/flipped", "A flipped bit in a shared segment", ("UCP-R-029",), "UCP-E-CHECKSUM",
        flipped(PACK, 13), also=True, **READ, **options,
    )  # fmt: skip
    yield case(
        "increments/unused", "A shared pack without segments", ("UCP-D-118",), "UCP-E-SEGMENT", unused, ops=(),
        **options,
    )  # fmt: skip
    yield case(
        "increments/overlap", "Two segments overlap in a shared pack", ("UCP-D-106",), "UCP-E-SEGMENT",
        overlap, ops=(), also=True, **options,
    )  # fmt: skip
    yield case(
        "increments/outside", "A shared pack in the directory of its base", ("UCP-D-010", "UCP-R-010"),
        "UCP-E-KEY", put("packs", "packs", 0, "key", to="../step-1.ucp/packs/a1-0-0.pack"),
        at=f"{PACKS}#/packs/0/key", also=True, **READ, **options,
    )  # fmt: skip


def own_padding(draft: Draft) -> None:
    """Write into a gap between segments of the second pack."""
    rows = sorted(row for row in draft.parts[0].table.rows if row[0] == 1)
    draft.pack_data[1][rows[0][2] + rows[0][3]] = 1


def own_alignment(draft: Draft) -> None:
    """Move a segment of the second pack by 4 bytes."""
    row = next(row for row in draft.parts[0].table.rows if row[0] == 1)
    start, length = row[2], row[3]
    data = draft.pack_data[1][start : start + length]
    draft.pack_data[1][start : start + length + 4] = bytes(4) + data
    row[2] += 4


def unused(draft: Draft) -> None:
    """List a shared pack of which nothing is used."""
    key = "packs/b2-0-0.pack"
    if draft.packs is not None:
        draft.packs["packs"].append({"key": key, "length": 3, "shared": True})
    draft.objects[key] = b"\1\2\3"


def overlap(draft: Draft) -> None:
    """Have one segment begin within another, with checksums that are right."""
    from generate.mutations import resum

    draft.parts[0].index["atoms"][0]["slots"]["exp_avg"].pop("content")
    rows = draft.parts[0].table.rows
    first, second = [number for number, row in enumerate(rows) if row[0] == 0][:2]
    rows[second][2] = rows[first][2] + 4
    resum(draft, second)
