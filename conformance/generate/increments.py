"""Bad increments: shared packs (SPEC sections 8.5 and 16.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generate.cases import Case
from generate.mutations import (
    PACK,
    PACKS,
    case,
    cell,
    drop,
    flipped,
    put,
    resum,
    several,
    shorter,
    table,
    without,
)
from ucp_conformance.drafting import Draft

__all__ = ["increment_cases", "row_set_cases"]

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


def row_set_cases() -> Iterator[Case]:
    """Yield cases of row sets and of layers."""
    options: dict[str, Any] = {"parent": "layers", "features": ("row-overwrite",)}
    yield case(
        "rows/undeclared", "Row sets that no feature announces", ("UCP-D-009",), "UCP-E-FEATURE-SET",
        put("root", "read_features", to=[]), at="ucp.json#/read_features", ops=(), **options,
    )  # fmt: skip
    yield case(
        "rows/superfluous", "The feature, and no row set", ("UCP-D-009",), "UCP-E-FEATURE-SET",
        put("root", "read_features", to=["row-overwrite"]), at="ucp.json#/read_features", ops=(),
        features=("row-overwrite",),
    )  # fmt: skip
    read = {**READ, **options, "also": True}
    for name, title, requirement, code, mutate in (
        ("without-box", "Rows of a segment without a box", "UCP-D-137", "UCP-E-SEGMENT", without_box),
        ("second-whole", "A second layer without a row set", "UCP-D-138", "UCP-E-SEGMENT", second_whole),
        ("row-missing", "A row in no layer", "UCP-D-139", "UCP-E-SEGMENT", row_missing),
        ("too-many", "33 layers of one box", "UCP-D-140", "UCP-E-SEGMENT", too_many),
        ("length", "A layer longer than its rows", "UCP-D-104", "UCP-E-SEGMENT", row_more),
        ("behind-last", "A bit behind the last row", "UCP-D-142", "UCP-E-TABLE", table(behind_last)),
        ("words-left", "Row words of no segment", "UCP-D-141", "UCP-E-TABLE", table(lambda t: t.row_words.append(0))),
        ("words-missing", "A row set that ends behind the row words", "UCP-D-141", "UCP-E-TABLE", table(words_missing)),
        ("shared-words", "Two row sets of the same words", "UCP-D-141", "UCP-E-TABLE", table(shared_words)),
    ):  # fmt: skip
        slot = "value" if name == "row-missing" else "exp_avg"
        params = {"atom": "alpha", "slot": slot}
        yield case(
            f"rows/{name}", title, (requirement, "UCP-R-028"), code, mutate, **{**read, "params": params}
        )
    yield case(
        "rows/under-damage", "A flipped bit in a row that later layers give", ("UCP-R-029",), "UCP-E-CHECKSUM",
        flipped_row, also=True, ops=(), **options,
    )  # fmt: skip


def found(draft: Draft) -> Any:
    """Return the table of the first part."""
    return draft.parts[0].table


def without_box(draft: Draft) -> None:
    """Take the box of the one layer that is left of the first slot."""
    rows = found(draft).rows
    rows[1][4] = 0
    del found(draft).words[4:8]
    for row in rows[2:]:
        row[4] -= 4


def second_whole(draft: Draft) -> None:
    """Have the second layer hold what the first one does."""
    rows = found(draft).rows
    rows[1][:4] = [rows[0][0], 0, *rows[0][2:4]]
    found(draft).checksums[1] = found(draft).checksums[0]
    del found(draft).row_words[:2]
    for row in rows[2:]:
        row[1] -= 2 if row[1] else 0


def row_missing(draft: Draft) -> None:
    """Take the last row from the last layer of the last box."""
    row = found(draft).rows[-1]
    row[3] -= 8
    draft.pack_data[row[0]][row[2] + row[3] : row[2] + row[3] + 8] = bytes(8)
    found(draft).row_words[-1] = 0b110
    resum(draft, len(found(draft).rows) - 1)


def too_many(draft: Draft) -> None:
    """Repeat the last layer of the first slot."""
    chosen = found(draft)
    row, words, sums = chosen.rows[2], chosen.row_words[2:4], chosen.checksums[2]
    for number in range(30):
        chosen.rows.insert(3, [row[0], row[1] + 2 * (30 - number), *row[2:4], row[4] + 4 * (30 - number)])
        chosen.checksums.insert(3, sums)
        chosen.row_words[4:4] = words
        chosen.words[12:12] = chosen.words[8:12]
    for row in chosen.rows[33:]:
        row[1] += 60 if row[1] else 0
        row[4] += 120
    chosen.counts[0] += 30


def row_more(draft: Draft) -> None:
    """Name a row more than the segment has."""
    found(draft).row_words[2] |= 1 << 7


def behind_last(chosen: Any) -> None:
    """Set the bit behind the last of 70 rows."""
    chosen.row_words[1] |= 1 << 6


def words_missing(chosen: Any) -> None:
    """Leave the last row word out."""
    chosen.row_words.pop()


def shared_words(chosen: Any) -> None:
    """Have the last two segments share their row set."""
    chosen.row_words.pop()
    chosen.rows[-1][1] = chosen.rows[-2][1]


def flipped_row(draft: Draft) -> None:
    """Flip a bit of the first row of the first layer."""
    row = found(draft).rows[0]
    draft.pack_data[row[0]][row[2]] ^= 1


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
    draft.parts[0].index["atoms"][0]["slots"]["exp_avg"].pop("content")
    rows = draft.parts[0].table.rows
    first, second = [number for number, row in enumerate(rows) if row[0] == 0][:2]
    rows[second][2] = rows[first][2] + 4
    resum(draft, second)
