"""What a writer is asked for: good checkpoints, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from generate.cases import Case
from generate.good import VALUES
from generate.parents import PARENTS, floats
from ucp_conformance.oracle.bytes_of import CORE_DTYPES, ITEM_BYTES, unused_bits

__all__ = ["write_cases"]


def write_check(
    atoms: list[Any], written: dict[str, str] | None, level: str, *, refuse: str = "", **params: Any
) -> dict[str, Any]:
    """Return a check of the method write."""
    full = {"storage": "packed", "chunk_bytes": 32, "atoms": atoms, **params}
    expect: dict[str, Any] = {"error": {"codes": refuse.split()}} if refuse else {"written": written}
    return {
        "name": "write",
        "role": "writer",
        "level": level,
        "op": "write",
        "params": full,
        "expect": expect,
    }


def slot(dtype: str, shape: list[int], file: str, **more: Any) -> dict[str, Any]:
    """Return a slot that comes whole."""
    return {"dtype": dtype, "shape": shape, "in": file, **more}


def write_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    for storage in ("plain", "packed"):
        yield from _good(storage)
    yield from _refusals()


def _good(storage: str) -> Iterator[Case]:
    def case(
        name: str, title: str, requirements: tuple[str, ...], checks: list[Any], expected: dict[str, bytes]
    ) -> Case:
        for check in checks:
            check["params"]["storage"] = storage
        return Case(f"good/write/{name}-{storage}", title, requirements, checks, None, expected)

    data = {"w.bin": floats(15), "z.bin": bytes(80), "blob": b"abc"}
    atoms = [
        {
            "name": "w",
            "aliases": ["tied"],
            "slots": {"value": slot("float32", [5, 3], "w.bin"), "zero": slot("int64", [10], "z.bin")},
        }
    ]
    of_documents = ("UCP-D-018", "UCP-D-029", "UCP-D-092", "UCP-D-093", "UCP-D-094", "UCP-D-111", "UCP-W-002")
    yield case(
        "dense",
        "Two slots, an alias",
        of_documents,
        [write_check(atoms, {"w/value": "w.bin", "w/zero": "z.bin"}, "dense", step=7)],
        data,
    )
    yield case("empty", "A checkpoint of nothing", (), [write_check([], {}, "dense")], {})
    files: dict[str, bytes] = {}
    slots: dict[str, dict[str, Any]] = {"dense": {}, "full": {}}
    for dtype, item in ITEM_BYTES.items():
        mask = 0xFF & ~unused_bits(dtype)
        files[f"{dtype}.bin"] = bytes((5 * number + 3) & mask for number in range(6 * item))
        slots["dense" if dtype in CORE_DTYPES else "full"][dtype] = slot(dtype, [3, 2], f"{dtype}.bin")
    for level, found in slots.items():
        atoms = [{"name": "w", "slots": found}]
        check = write_check(atoms, {f"w/{name}": f"{name}.bin" for name in found}, level)
        yield case(
            f"dtypes-{level}",
            f"Data types of level {level}",
            ("UCP-D-036", "UCP-D-037"),
            [check],
            {f"{name}.bin": files[f"{name}.bin"] for name in found},
        )
    shapes: list[list[int]] = [[], [0], [3, 0, 2], [1, 1], [13], [7, 5], [2, 40]]
    slots_of = {f"s{number}": slot("float32", shape, f"{number}.bin") for number, shape in enumerate(shapes)}
    expected = {f"{number}.bin": floats(_size(shape)) for number, shape in enumerate(shapes)}
    check = write_check(
        [{"name": "w", "slots": slots_of}],
        {f"w/s{number}": f"{number}.bin" for number in range(len(shapes))},
        "dense",
    )
    yield case("shapes", "Shapes of every kind", ("UCP-D-092", "UCP-D-095"), [check], expected)
    names = [
        "a",
        "A",
        "x y/z",
        "é",
        "￿",
        "\U0001f642",
        "zarr.json",
        "..",
        "con",
        "n" * 1024,
        ".hidden",
        "__d",
        "a.",
    ]
    atoms = [{"name": name, "slots": {"value": slot("uint8", [1], "b.bin")}} for name in names]
    check = write_check(atoms, {f"{name}/value": "b.bin" for name in names}, "dense")
    of_keys = ("UCP-D-010", "UCP-D-011", "UCP-D-015", "UCP-D-017", "UCP-D-024", "UCP-D-016")
    yield case("names", "Names that are no keys", of_keys, [check], {"b.bin": b"\1"})
    compressor = {"name": "gzip", "configuration": {"level": 5}}
    atoms = [{"name": "w", "slots": {"value": slot("float32", [8, 5], "w.bin", compressor=compressor)}}]
    yield case(
        "gzip",
        "The compressor gzip",
        ("UCP-R-005", "UCP-D-102"),
        [write_check(atoms, {"w/value": "w.bin"}, "full")],
        {"w.bin": floats(40)},
    )
    groups = {
        "optim": {"groups": [{"atoms": ["w"], "options": {"lr": 0.1, "betas": {"$tuple": [0.9, 0.95]}}}]}
    }
    atoms = [{"name": "w", "slots": {"value": slot("float32", [5, 3], "w.bin")}}]
    check = write_check(
        atoms,
        {"w/value": "w.bin"},
        "full",
        values=VALUES,
        optimizers=groups,
        blobs={"extra": {"media_type": "text/plain", "in": "blob"}},
    )
    yield case(
        "state", "Values, optimizers and a blob", ("UCP-D-085", "UCP-D-088", "UCP-W-027"), [check], data
    )


def _refusals() -> Iterator[Case]:
    good = slot("float32", [5, 3], "w.bin")
    bad: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
        "dimensions": ("w", "value", slot("uint8", [1] * 33, "b.bin"), ("UCP-E-SHAPE", "UCP-D-033")),
        "name-empty": ("", "value", good, ("UCP-E-NAME", "UCP-D-023")),
        "name-long": ("n" * 1025, "value", good, ("UCP-E-NAME", "UCP-D-023")),
        "name-control": ("a\n", "value", good, ("UCP-E-NAME", "UCP-D-023")),
        "slot-name": ("w", "a/b", good, ("UCP-E-KEY", "UCP-D-030")),
        "slot-zarr": ("w", "zarr.json", good, ("UCP-E-KEY", "UCP-D-016")),
        "slot-long": ("w", "s" * 65, good, ("UCP-E-KEY", "UCP-D-030")),
        "dtype": ("w", "value", slot("uint3", [5, 3], "w.bin"), ("UCP-E-DTYPE", "UCP-R-016")),
    }
    expected = {"w.bin": floats(15), "b.bin": b"\1"}
    for name, (atom, slot_name, value, (code, requirement)) in bad.items():
        check = write_check([{"name": atom, "slots": {slot_name: value}}], None, "dense", refuse=code)
        yield Case(
            f"bad/write/{name}",
            f"A writer is asked for what cannot be: {name}",
            (requirement, "UCP-S-005"),
            [check],
            None,
            expected,
            mutates="good/write/dense-packed",
            mutation=name,
        )
    for name, size in {"chunk-bytes-small": 15, "chunk-bytes-large": 2**30 + 1}.items():
        check = write_check(
            [{"name": "w", "slots": {"value": good}}],
            None,
            "dense",
            refuse="UCP-E-LIMIT UCP-E-SCHEMA",
            chunk_bytes=size,
        )
        yield Case(
            f"bad/write/{name}",
            f"A writer is asked for what cannot be: {name}",
            ("UCP-S-005",),
            [check],
            None,
            expected,
            mutates="good/write/dense-packed",
            mutation=name,
        )
    check = write_check([{"name": "w", "slots": {"value": good}}], None, "dense", refuse="UCP-E-EXISTS")
    check["onto"] = True
    files = PARENTS["packed"]().files()
    yield Case(
        "bad/write/exists",
        "A root document is there already",
        ("UCP-W-004", "UCP-W-005"),
        [check],
        files,
        expected,
        mutates="good/write/dense-packed",
        mutation="exists",
    )


def _size(shape: list[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
