"""Tables of SPEC.md against the registries of the library: errors, features, data types, limits."""

from __future__ import annotations

import json
import re

from ucp_conformance.oracle.bytes_of import CORE_DTYPES
from ucp_conformance.profiles import PROFILES
from ucp_conformance.results import LEVELS

from tests.spec.document import DOCUMENTS, fences, lines, prose, table
from ucpformat.errors import REGISTRY
from ucpformat.geometry.lower import MAX_ELEMENTS
from ucpformat.geometry.mesh import MAX_COORDINATES
from ucpformat.jsonio import MAX_BYTES, MAX_DEPTH, MAX_INTEGER
from ucpformat.model.atom import MAX_NDIM, Slot
from ucpformat.model.dtype import DTYPES
from ucpformat.model.envelope import FEATURES
from ucpformat.model.layout_json import STEP_KINDS
from ucpformat.model.root import (
    MAX_CHUNK_BYTES,
    MAX_DOCUMENT_BYTES,
    MAX_ROOT_BYTES,
    MAX_TABLE_BYTES,
    MIN_CHUNK_BYTES,
)
from ucpformat.model.zarr_document import GROUP_DOCUMENT, slot_document


def test_errors_are_those_of_the_registry_in_order_of_precedence() -> None:
    assert table("| code | meaning |") == [[f"`{code}`", entry.title] for code, entry in REGISTRY.items()]


def test_every_code_that_is_mentioned_exists() -> None:
    for document in DOCUMENTS:
        mentioned = set(re.findall(r"UCP-[EW]-[A-Z][A-Z-]*[A-Z]", "\n".join(lines(document))))
        assert mentioned <= set(REGISTRY), document


def test_features_are_those_of_the_registry() -> None:
    assert table("| feature | class | needed when |") == [
        [f"`{feature.name}`", feature.kind, feature.needed_when] for feature in FEATURES
    ]


def test_limits_are_those_of_the_library() -> None:
    rows = table("| what | limit | code | stated by |")
    limits = {what: limit for what, limit, _, _ in rows}
    assert {code.strip("`") for _, _, code, _ in rows} <= set(REGISTRY)
    assert limits["elements of a local tensor"] == "2^53-1"
    assert MAX_ELEMENTS == 2**53 - 1
    assert limits["root document"] == f"{MAX_ROOT_BYTES >> 20} MiB"
    assert limits["any other JSON document"] == f"{MAX_DOCUMENT_BYTES >> 20} MiB"
    assert MAX_DOCUMENT_BYTES == MAX_BYTES
    assert limits["chunk table"] == f"{MAX_TABLE_BYTES >> 30} GiB"
    assert limits["nesting of JSON"] == str(MAX_DEPTH)
    assert limits["dimensions of a tensor"] == str(MAX_NDIM)
    assert limits["bytes of a slot"] == "2^53-1"
    assert MAX_INTEGER == 2**53 - 1
    assert limits["bytes of a chunk target"] == f"{MIN_CHUNK_BYTES} to 2^30"
    assert MAX_CHUNK_BYTES == 2**30
    assert limits["coordinates of a mesh"] == "2^20"
    assert MAX_COORDINATES == 2**20


def test_data_types_are_those_of_the_library() -> None:
    stated = {
        name: (int(size.split()[0]), fill)
        for names, size, fill in table("| data types | bytes per element | fill value in Zarr metadata |")
        for name in re.findall(r"`([a-z0-9_]+)`", names)
    }
    assert stated == {
        entry.name: (entry.item_bytes, f"`{json.dumps(entry.zarr_fill, separators=(',', ':'))}`")
        for entry in DTYPES.values()
    }


def test_steps_of_layouts_are_those_of_the_library() -> None:
    stated = [match[1] for _, line in prose() if (match := re.match(r"\* \*\*`([a-z]+)`\*\*:", line))]
    assert [kind for kind in stated if kind in STEP_KINDS] == list(STEP_KINDS)


def test_profiles_are_those_of_the_suite_and_every_step_is_in_one() -> None:
    rows = table("| profile | layouts (section 12) |")
    stated = {
        name.strip("*"): tuple(kind for kind in re.findall(r"`([a-z]+)`", what) if kind in STEP_KINDS)
        for name, what in rows
    }
    assert stated == dict(PROFILES)
    assert sorted(kind for kinds in PROFILES.values() for kind in kinds) == sorted(STEP_KINDS)


def test_levels_are_those_of_the_suite() -> None:
    stated = [
        level.strip("*").lower()
        for level, _, _ in table("| level | of each role, with all levels before | profiles |")
    ]
    assert stated == list(LEVELS)


def test_core_data_types_are_those_of_the_suite() -> None:
    assert (
        "The core data types are `bool`, the integers of 8 to 64 bits, `float16`, `bfloat16`, `float32` and `float64`."
        in lines()
    )
    integers = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
    assert set(CORE_DTYPES) == {"bool", "float16", "bfloat16", "float32", "float64"} | integers


def test_derived_documents_are_those_of_the_library() -> None:
    """UCP-D-094."""
    shown = [fence.text.replace("\n", "") for fence in fences() if '"zarr_format"' in fence.text]
    derived = slot_document(Slot("value", "float32", (4097, 512)), (2049, 512))
    assert shown == [GROUP_DOCUMENT.decode(), derived.decode()]


def test_no_placeholder_is_left() -> None:
    assert [place for place, line in prose() if "<!--" in line] == []
