"""Faults that show in several places, of which a validator says the first (SPEC section 18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from generate.cases import Case, frozen_encoder
from generate.mutations import (
    CHUNK,
    INDEX,
    PACK,
    STATE,
    TABLE,
    bent,
    case,
    cell,
    field,
    flipped,
    longer,
    override,
    put,
    several,
    shorter,
    without,
)
from generate.parents import GZIP
from ucp_conformance.drafting import Draft
from ucp_conformance.oracle.bytes_of import crc32c

__all__ = ["precedence_cases"]

OF_BYTES = ("UCP-E-DIGEST", "UCP-E-CHECKSUM", "UCP-E-CODEC", "UCP-E-PADDING", "UCP-E-CONTENT")
OF_CONTENT = ("UCP-E-NAME", "UCP-E-REFERENCE", "UCP-E-FEATURE-SET", "UCP-W-UNREFERENCED")

_broken_names = several(
    put("index0", "more", to=1), put("index0", "atoms", 0, "slots", "value", "layout", to=7)
)  # fmt: skip


def _undecodable(draft: Draft) -> None:
    """Make a chunk that is no gzip stream, with its checksum, and a content digest that cannot be looked at."""
    row = draft.parts[0].table.rows[0]
    stored = frozen_encoder(GZIP, bytes(range(24)))[:-9]
    draft.pack_data[0][row[2] : row[2] + row[3]] = stored + bytes(row[3] - len(stored))
    row[3] = len(stored)
    draft.parts[0].table.checksums[0] = crc32c(stored)
    draft.parts[0].index["atoms"][0]["slots"]["value"]["content"] = "crc32c-tree:" + "5" * 64


FAULTS: dict[str, tuple[str, Callable[[Draft], object], str, str, tuple[str, ...], str]] = {
    # fault: (parent, mutation, code, place, what is not said beside it, title)
    "missing-part": ("packed", without(INDEX), "UCP-E-MISSING", INDEX, OF_CONTENT, "A missing part hides what it would say"),
    "missing-part-plain": ("plain", without(INDEX), "UCP-E-MISSING", INDEX, OF_CONTENT, "A missing part hides whose chunks lie in the store"),
    "missing-state": ("packed", without(STATE), "UCP-E-MISSING", STATE, OF_CONTENT, "A missing state document hides its blobs"),
    "json-part": ("packed", bent("index0", lambda data: data[:-1]), "UCP-E-JSON", INDEX, OF_CONTENT, "A part that is not JSON hides what it says"),
    "format": ("packed", several(put("root", "format", to="other"), put("root", "read_features", to=["zstd"])), "UCP-E-FORMAT", "ucp.json", (*OF_CONTENT, "UCP-E-SCHEMA", "UCP-E-DIGEST"), "An envelope of something else hides the rest of the root"),
    "schema-part": ("packed", _broken_names, "UCP-E-SCHEMA", INDEX, OF_CONTENT, "A part that breaks its schema hides what it says"),
    "superfluous-feature": ("packed", put("root", "read_features", to=["zstd"]), "UCP-E-FEATURE-SET", "ucp.json", ("UCP-E-FEATURE",), "A feature that nothing needs, supported or not"),
    "superfluous-features": ("packed", put("root", "read_features", to=["blosc", "zstd"]), "UCP-E-FEATURE-SET", "ucp.json", ("UCP-E-FEATURE",), "Two features that nothing needs"),
    "table": ("packed", several(field(version=1), cell(0, 2, 1)), "UCP-E-TABLE", TABLE, ("UCP-E-SEGMENT", *OF_BYTES), "A malformed table hides its segments"),
    "length-part": ("packed", override("index0", length=1, digest="sha256:" + "5" * 64), "UCP-E-LENGTH", INDEX, ("UCP-E-DIGEST",), "A part of another length has another digest"),
    "length-table": ("packed", longer(TABLE), "UCP-E-LENGTH", TABLE, ("UCP-E-DIGEST",), "A table of another length has another digest"),
    "length-state": ("packed", longer(STATE), "UCP-E-LENGTH", STATE, ("UCP-E-DIGEST",), "A state document of another length has another digest"),
    "length-blob": ("packed", shorter("blobs/a1-0"), "UCP-E-LENGTH", "blobs/a1-0", OF_BYTES, "A blob of another length has another digest"),
    "length-chunk": ("plain", several(flipped(CHUNK, 3), longer(CHUNK)), "UCP-E-LENGTH", CHUNK, OF_BYTES, "A chunk of another length has another checksum"),
    "length-pack": ("packed", several(flipped(PACK, 40), longer(PACK)), "UCP-E-LENGTH", PACK, OF_BYTES, "A pack of another length has bytes that are not zero"),
    "checksum-chunk": ("plain", flipped(CHUNK, 3), "UCP-E-CHECKSUM", CHUNK, ("UCP-E-CODEC", "UCP-E-CONTENT"), "A flipped bit breaks the codec's checksum too"),
    "checksum-gzip": ("gzip-packed", flipped(PACK, 14), "UCP-E-CHECKSUM", PACK, ("UCP-E-CODEC", "UCP-E-PADDING", "UCP-E-CONTENT"), "A flipped bit breaks the compressed stream too"),
    "codec": ("gzip-packed", _undecodable, "UCP-E-CODEC", "", ("UCP-E-CONTENT", "UCP-E-PADDING"), "A chunk that does not decode has no content"),
}  # fmt: skip


def precedence_cases() -> Iterator[Case]:
    """Yield cases in which a fault is reported once, by the code that comes first in the table of section 18."""
    for name, (parent, mutate, code, at, never, title) in FAULTS.items():
        yield case(
            f"precedence/{name}", title, ("UCP-V-001", "UCP-V-005") if "feature" in name else ("UCP-V-005",), code, mutate, parent, at=at or (), ops=(), also=True, never=never,
            level="full" if parent.startswith("gzip") else "inspect",
        )  # fmt: skip
