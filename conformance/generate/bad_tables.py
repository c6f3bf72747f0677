"""Bad checkpoints: chunk tables and segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from generate.cases import Case, bad_case
from generate.mutations import (
    TABLE,
    case,
    cell,
    field,
    resum,
    several,
    table,
)
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft


def bad_table_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _tables()
    yield from _segments()


FIXED = ("magic", "version", "block", "reserved", "reserved-last")


def _tables() -> Iterator[Case]:
    read: dict[str, Any] = {"ops": ("read",), "at": TABLE, "also": True}
    header: dict[str, Callable[[Draft], object]] = {
        "magic": field(magic=b"UCPTABLF"), "version": field(version=1), "block": field(block=65536), "reserved": field(zero=b"\1" + bytes(7)),
        "reserved-last": field(zero=bytes(7) + b"\1"),
        "more-segments": field(segments=2**40), "overflow": field(segments=2**59), "fewer-chunks": field(chunks=5), "tail": table(lambda t: setattr(t, "tail", b"\0\0\0\0")),
        "short": lambda d: d.bytes_of.update(table0=lambda data: data[:63]), "cut": lambda d: d.bytes_of.update(table0=lambda data: data[:-4]),
        "empty": lambda d: d.bytes_of.update(table0=lambda data: b""),
        "counts-sum": table(lambda t: t.counts.__setitem__(0, 2)),
        "checksum-too-many": table(lambda t: t.checksums.append(0)),
    }  # fmt: skip
    for name, mutate in header.items():
        yield case(
            f"tables/{name}",
            f"A chunk table: {name}",
            ("UCP-D-112" if name in FIXED else "UCP-D-111", "UCP-R-028", "UCP-S-002", "UCP-S-003"),
            "UCP-E-TABLE",
            mutate,
            **read,
        )
    yield case(
        "tables/chunks",
        "A chunk too many",
        ("UCP-D-113", "UCP-R-028"),
        "UCP-E-TABLE",
        table(lambda t: t.counts.append(0)),
        **read,
    )

    def nothing(found: Any) -> None:
        found.rows[0][3] = 0
        found.checksums.pop(0)

    yield case(
        "tables/length-zero",
        "A segment without bytes",
        ("UCP-D-114", "UCP-R-028"),
        "UCP-E-TABLE",
        table(nothing),
        **read,
    )
    for name, mutate in {
        "container": cell(0, 0, 0), "offset": cell(0, 2, 4), "box": several(cell(0, 4, 1), table(lambda t: t.words.extend([0, 0, 2, 3]))),
        "two-segments": table(lambda t: (t.counts.__setitem__(0, 2), t.counts.__setitem__(1, 0))),
    }.items():  # fmt: skip
        yield case(
            f"tables/plain-{name}",
            f"Storage plain, a segment: {name}",
            ("UCP-D-115", "UCP-R-028"),
            ["UCP-E-TABLE"],
            mutate,
            "plain",
            **read,
        )
    for name, value in {"one-more": 1, "own-object": 0xFFFFFFFF}.items():
        yield case(
            f"tables/packed-{name}",
            f"Storage packed, a container: {name}",
            ("UCP-D-116", "UCP-R-028"),
            "UCP-E-TABLE",
            cell(0, 0, value),
            **read,
        )
    words: dict[str, Callable[[Any], object]] = {
        "gap": lambda t: (t.words.insert(4, 0), t.rows[1].__setitem__(4, 6)),
        "unused": lambda t: t.words.extend([0]),
        "shared": lambda t: (t.rows[1].__setitem__(4, 1), t.words.__delitem__(slice(4, 8))),
        "overlap": lambda t: t.rows[1].__setitem__(4, 4),
        "beyond": lambda t: t.rows[1].__setitem__(4, 2**40),
        "swapped": lambda t: (t.rows[0].__setitem__(4, 5), t.rows[1].__setitem__(4, 1), t.words.__setitem__(slice(None), t.words[4:] + t.words[:4])),
    }  # fmt: skip
    for name, change in words.items():
        yield case(
            f"tables/words-{name}",
            f"Box words: {name}",
            ("UCP-D-117", "UCP-R-028"),
            "UCP-E-TABLE",
            table(change),
            "boxed",
            **read,
        )


FIRST = {"atom": "alpha", "slot": "exp_avg"}


def _scalar_box(draft: Draft) -> None:
    """Make the slot without dimensions the second one of the second part."""
    draft.parts[1].table.rows[-1][4] = 1


def _segments() -> Iterator[Case]:
    yield case(
        "tables/scalar-box", "A box for a slot without dimensions", ("UCP-D-110", "UCP-R-028"), "UCP-E-TABLE", _scalar_box,
        ops=("read",), also=True, params={"atom": "beta", "slot": "value"}, at="index/a1-1.bin",
    )  # fmt: skip
    read: dict[str, Any] = {"ops": ("read",), "also": True}
    boxes: dict[str, tuple[list[int], str]] = {
        "overlap": ([0, 0, 2, 2, 0, 1, 2, 2], "UCP-D-101"), "gap": ([0, 0, 1, 1, 0, 1, 2, 2], "UCP-D-101"), "outside": ([0, 0, 2, 1, 0, 2, 2, 2], "UCP-D-101"),
        "overlap-and-gap": ([0, 0, 2, 2, 0, 1, 2, 1], "UCP-D-101"), "far-outside": ([0, 0, 2, 1, 0, 2**53 - 2, 2, 2], "UCP-S-003"),
    }  # fmt: skip
    for name, (words, requirement) in boxes.items():

        def mutate(draft: Draft, words: Sequence[int] = words) -> None:
            found = draft.parts[0].table
            found.words[:] = words
            for row, size in ((0, words[2] * words[3]), (1, words[6] * words[7])):
                found.rows[row][3] = 4 * size
                resum(draft, row)

        yield case(
            f"segments/{name}",
            f"Boxes: {name}",
            (requirement, "UCP-R-028"),
            "UCP-E-SEGMENT",
            mutate,
            "boxed",
            **read,
        )

    def unsorted(draft: Draft) -> None:
        found = draft.parts[0].table
        found.words[:] = found.words[4:] + found.words[:4]
        found.rows[0][:4], found.rows[1][:4] = found.rows[1][:4], found.rows[0][:4]
        found.checksums[0], found.checksums[1] = found.checksums[1], found.checksums[0]

    yield case(
        "segments/unsorted",
        "Boxes in the wrong order",
        ("UCP-D-103", "UCP-R-028"),
        "UCP-E-SEGMENT",
        unsorted,
        "boxed",
        **read,
    )

    def emptied(draft: Draft) -> None:
        found = draft.parts[0].table
        found.rows.insert(1, [0, 0, 0, 1, 5])
        found.words[4:4] = [0, 1, 2, 0]
        found.rows[2][4] = 9
        found.counts[0] = 3
        found.checksums.insert(1, 0)

    yield case(
        "segments/box-empty",
        "A box without elements",
        ("UCP-D-109", "UCP-R-028"),
        "UCP-E-SEGMENT",
        emptied,
        "boxed",
        **read,
    )
    for name, length in {"short": 20, "long": 28}.items():

        def resized(draft: Draft, length: int = length) -> None:
            draft.parts[0].table.rows[0][3] = length
            resum(draft, 0)

        yield case(
            f"segments/length-{name}",
            f"A segment that is too {name}",
            ("UCP-D-104", "UCP-R-028"),
            "UCP-E-SEGMENT",
            resized,
            **read,
            params=FIRST,
        )
    for name, offset in {
        "beyond": 2**20,
        "beyond-partly": 384,
        "overflow": 2**64 - 64,
        "largest": 2**63,
    }.items():
        yield case(
            f"segments/{name}",
            f"A segment outside its pack: {name}",
            ("UCP-D-105", "UCP-R-028", "UCP-S-003"),
            "UCP-E-SEGMENT",
            cell(0, 2, offset),
            **read,
            params=FIRST,
        )

    def boxed_gzip(draft: Draft) -> None:
        found = draft.parts[0].table
        found.rows[0][4] = 1
        found.words += [0, 0, 2, 3]

    yield case(
        "segments/compressed-box",
        "A compressed chunk with a box",
        ("UCP-D-102", "UCP-R-028"),
        "UCP-E-SEGMENT",
        boxed_gzip,
        "gzip-packed",
        **read,
    )

    def two(draft: Draft) -> None:
        found = draft.parts[0].table
        found.rows.insert(1, list(found.rows[0]))
        found.checksums.insert(1, found.checksums[0])
        found.counts[0] = 2

    yield case(
        "segments/compressed-two",
        "A compressed chunk in two segments",
        ("UCP-D-102", "UCP-R-028"),
        "UCP-E-SEGMENT",
        two,
        "gzip-packed",
        **read,
    )
    yield case(
        "segments/two-whole",
        "Two segments for one whole chunk",
        ("UCP-D-101", "UCP-R-028"),
        "UCP-E-SEGMENT",
        two,
        **read,
        params=FIRST,
    )

    def moved(draft: Draft) -> None:
        draft.pack_data[0] = bytearray(8) + draft.pack_data[0]
        assert draft.packs is not None
        draft.packs["packs"][0]["length"] += 8
        for part in draft.parts:
            for row in part.table.rows:
                row[2] += 8

    yield case(
        "segments/alignment",
        "Segments at offsets that are no multiples of 64",
        ("UCP-D-107", "UCP-R-028"),
        "UCP-E-SEGMENT",
        moved,
        ops=("read",),
        params=FIRST,
        also=True,
    )

    def moved_large(draft: Draft) -> None:
        assert draft.packs is not None
        draft.pack_data[0] = bytearray(64) + draft.pack_data[0]
        draft.packs["packs"][0]["length"] += 64
        draft.parts[0].table.rows[0][2] += 64

    data = bytes(number % 251 for number in range(65536))
    large = Draft([AtomDraft("alpha", {"value": SlotDraft("uint8", (65536,), data)})], chunk_bytes=65536)
    yield bad_case(
        "segments/alignment-large",
        "A segment of 65,536 bytes at an offset that is a multiple of 64 alone",
        ("UCP-D-107", "UCP-R-028"),
        "UCP-E-SEGMENT",
        large,
        moved_large,
        parent="packed",
        ops=("read",),
        also=True,
    )

    def carried(draft: Draft, row: int, container: int, offset: int) -> None:
        """Carry the bytes of a segment elsewhere."""
        found = draft.parts[0].table.rows[row]
        start, stop = found[2], found[2] + found[3]
        data = draft.pack_data[found[0]][start:stop]
        draft.pack_data[found[0]][start:stop] = bytes(len(data))
        draft.pack_data[container][offset : offset + len(data)] = data
        found[0], found[2] = container, offset

    def behind_slot(draft: Draft) -> None:
        rows = draft.parts[0].table.rows
        carried(draft, 3, 0, rows[2][2] + rows[2][3])

    def behind_pack(draft: Draft) -> None:
        rows = draft.parts[0].table.rows
        offset = rows[3][2] + rows[3][3]
        assert draft.packs is not None
        draft.packs["packs"].append({"key": draft.pack_key(1), "length": offset + rows[4][3]})
        draft.pack_data.append(bytearray(offset))
        carried(draft, 4, 1, offset)

    def behind_gap(draft: Draft) -> None:
        carried(draft, 5, 0, draft.parts[0].table.rows[5][2] + 4)

    for name, title, move in (
        ("slot", "A segment right behind that of another slot, not aligned", behind_slot),
        ("pack", "A segment that begins where another one of its slot ends, in another pack", behind_pack),
        ("gap", "A segment four bytes behind an aligned place", behind_gap),
    ):
        yield case(
            f"segments/behind-{name}",
            title,
            ("UCP-D-107", "UCP-R-028"),
            "UCP-E-SEGMENT",
            move,
            ops=("read",),
            params=FIRST,
            also=True,
        )

    def nested(draft: Draft) -> None:
        # The last chunk of a slot, 12 bytes, is taken from the beginning of the first chunk's 24.
        found = draft.parts[0].table
        found.rows[2][2] = found.rows[0][2]
        resum(draft, 2)
        start = 128
        draft.pack_data[0][start : start + 12] = bytes(12)
        for slot in draft.parts[0].index["atoms"][0]["slots"].values():
            slot.pop("content")

    yield case(
        "segments/nested",
        "A segment inside another one",
        ("UCP-D-106",),
        "UCP-E-SEGMENT",
        nested,
        ops=(),
        also=True,
    )
