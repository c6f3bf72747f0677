"""What a validator finds at each of its levels (SPEC section 18)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from generate.cases import Case, validation
from generate.mutations import INDEX, after, bent, flipped, inserted, put, without
from generate.parents import PARENTS
from ucp_conformance.drafting import Draft

__all__ = ["level_cases"]

LEVELS = ("structure", "semantics", "integrity")


def _digest(files: dict[str, bytes]) -> None:
    root = files["ucp.json"]
    start = root.index(b'"digest":"sha256:') + 17
    files["ucp.json"] = root[:start] + b"0123456789abcdef" * 4 + root[start + 64 :]


def _longer(files: dict[str, bytes]) -> None:
    files[INDEX] += b" "


FAULTS: dict[str, tuple[str, Callable[[Draft], object], str, str, tuple[str, ...], str]] = {
    # fault: (parent, mutation, code, the first level that finds it, requirements, title)
    "json": ("packed", bent("index0", inserted(b'"x":NaN')), "UCP-E-JSON", "structure", ("UCP-D-004",), "NaN"),
    "schema": ("packed", put("root", "storage", to="zip"), "UCP-E-SCHEMA", "structure", ("UCP-R-014",), "A storage that nobody knows"),
    "schema-part": ("packed", put("index0", "more", to=1), "UCP-E-SCHEMA", "structure", ("UCP-R-014",), "A member more in a part"),
    "value-schema": ("packed", put("state", "values", "epoch", to={"$float": "0.5"}), "UCP-E-VALUE", "structure", ("UCP-R-023",), "A value that breaks its schema"),
    "value-decoder": ("packed", put("state", "values", "epoch", to={"$set": [2, 1]}), "UCP-E-VALUE", "semantics", ("UCP-R-023",), "A value that a decoder refuses"),
    "version": ("packed", put("root", "format_version", to=7), "UCP-E-VERSION", "structure", ("UCP-R-007",), "Another version"),
    "part-missing": ("packed", without(INDEX), "UCP-E-MISSING", "structure", ("UCP-R-013",), "A part is missing"),
    "root-digest": ("packed", after(_digest), "UCP-E-DIGEST", "semantics", ("UCP-R-012",), "Another root digest"),
    "part-longer": ("packed", after(_longer), "UCP-E-LENGTH", "semantics", ("UCP-R-013",), "A part with another length"),
    "feature-superfluous": ("packed", put("root", "write_features", to=["a"]), "UCP-E-FEATURE-SET", "semantics", ("UCP-D-009",), "A superfluous feature"),
    "name": ("packed", put("entry0", "first", to="aaa"), "UCP-E-NAME", "semantics", ("UCP-D-026",), "Another first name"),
    "zarr": ("plain", flipped("atoms/zarr.json", 2), "UCP-E-ZARR", "semantics", ("UCP-D-094",), "A flipped bit in Zarr metadata"),
    "pack-missing": ("packed", without("packs/a1-0-0.pack"), "UCP-E-MISSING", "integrity", ("UCP-V-004",), "A pack is missing"),
    "pack-bit": ("packed", flipped("packs/a1-0-0.pack", 0), "UCP-E-CHECKSUM", "integrity", ("UCP-V-004",), "A flipped bit in a pack"),
    "blob-missing": ("packed", without("blobs/a1-0"), "UCP-E-MISSING", "integrity", ("UCP-V-004",), "A blob is missing"),
}  # fmt: skip


def level_cases() -> Iterator[Case]:
    """Yield cases in which a fault is found from its level on, and not before."""
    for name, (parent, mutate, code, first, requirements, title) in FAULTS.items():
        draft = PARENTS[parent]()
        mutate(draft)
        checks = []
        for level in LEVELS:
            is_found = LEVELS.index(level) >= LEVELS.index(first)
            check = validation([code] if is_found else [], also=True)
            check["params"] = {"level": level}
            checks.append(check | {"name": f"validate-{level}"})
        yield Case(
            f"bad/levels/{name}", f"{title}: found at level {first} and above", ("UCP-V-004", *requirements), checks,
            draft.files(), mutates=f"good/parents/{parent}", mutation=title,
        )  # fmt: skip
