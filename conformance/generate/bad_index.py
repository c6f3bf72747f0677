"""Bad checkpoints: index parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from generate.cases import Case
from generate.mutations import (
    INDEX,
    case,
    drop,
    put,
    several,
)
from ucp_conformance.drafting import Draft


def bad_index_cases() -> Iterator[Case]:
    """Yield cases of names, keys, slots and shapes."""
    atom = ("index0", "atoms", 0)
    slot = (*atom, "slots", "value")
    at = f"{INDEX}#/atoms/0"
    schema: dict[str, tuple[Callable[[Draft], object], tuple[str, ...], str]] = {
        "no-slots": (put(*atom, "slots", to={}), ("UCP-D-035",), "An atom without slots"),
        "unknown-member": (put(*slot, "colour", to=1), ("UCP-D-022",), "A slot with a member more"),
        "shape-negative": (put(*slot, "shape", 0, to=-1), (), "A negative extent"),
        "shape-fraction": (put(*slot, "shape", 0, to=5.5), (), "An extent of 5.5"),
        "compressor-unknown": (
            put(*slot, "compressor", to={"name": "lzma", "configuration": {}}),
            (),
            "A compressor that nobody knows",
        ),
        "gzip-without-level": (
            put(*slot, "compressor", to={"name": "gzip", "configuration": {}}),
            (),
            "gzip without a level",
        ),
        "content-other": (
            put(*slot, "content", to="sha256:" + "1" * 64),
            (),
            "A content digest of another kind",
        ),
        "place-without-totals": (put(*slot, "place", to={"offsets": [0]}), (), "A place without totals"),
        "place-empty": (put(*slot, "place", to={"offsets": [], "totals": []}), (), "A place without entries"),
        "no-atoms": (
            several(
                put("index0", "atoms", to=[]),
                put("entry0", "first", to="alpha"),
                put("entry0", "last", to="alpha"),
            ),
            ("UCP-D-025",),
            "A part without atoms",
        ),
    }
    for name, (mutate, more, title) in schema.items():
        yield case(
            f"index/{name}",
            title,
            ("UCP-R-014", *more),
            "UCP-E-SCHEMA",
            mutate,
            also=name in ("no-slots", "no-atoms"),
        )
    for name, text in {
        "empty": "",
        "long": "n" * 1025,
        "long-utf-8": "é" * 513,
        "control": "a\u0007",
        "c1-control": "a\u0085",
        "delete": "a\x7f",
    }.items():
        yield case(
            f"names/{name}", f"A name: {name}", ("UCP-D-023", "UCP-R-015"), "UCP-E-NAME",
            several(
                put(*atom, "name", to=text), put("entry0", "first", to=text), put("entry0", "last", to=text),
                drop("state", "optimizers", "optim"),
            ),
        )  # fmt: skip

    def merged(draft: Draft, names: Sequence[str]) -> None:
        """Put both atoms in one part, under other names."""
        first, second = draft.parts
        first.index["atoms"] += second.index["atoms"]
        for found, name in zip(first.index["atoms"], names, strict=True):
            found["name"] = name
        for member in ("rows", "words", "counts", "checksums"):
            getattr(first.table, member).extend(getattr(second.table, member))
        draft.parts = [first]
        if draft.state is not None:
            draft.state["optimizers"] = {}

    yield case(
        "names/unsorted",
        "Atoms in the wrong order",
        ("UCP-D-024", "UCP-R-015"),
        "UCP-E-NAME",
        lambda d: merged(d, ("z", "a")),
    )
    yield case(
        "names/utf-16-order",
        "Atoms in order of UTF-16 units",
        ("UCP-D-024", "UCP-R-015"),
        "UCP-E-NAME",
        lambda d: merged(d, ("\U0001f642", "￿")),
    )
    yield case(
        "names/twice",
        "Two atoms of one name",
        ("UCP-D-024", "UCP-D-028", "UCP-R-015"),
        "UCP-E-NAME",
        lambda d: merged(d, ("a", "a")),
    )
    alias = put(*atom, "aliases", to=["alpha"])
    yield case(
        "names/alias-own",
        "An alias that is the atom's own name",
        ("UCP-D-028", "UCP-R-015"),
        "UCP-E-NAME",
        alias,
        at=INDEX,
    )
    other = put(*atom, "aliases", to=["beta"])
    yield case(
        "names/alias-other",
        "An alias that is the name of an atom of another part",
        ("UCP-D-028",),
        "UCP-E-NAME",
        other,
        ops=(),
    )
    yield case(
        "names/alias-control",
        "An alias with a control character",
        ("UCP-D-023",),
        "UCP-E-NAME",
        put(*atom, "aliases", to=["a\n"]),
        at=INDEX,
    )
    for name, key in {
        "component": "a/b",
        "hidden": ".alpha",
        "zarr": "Zarr.json",
        "empty": "",
        "long": "a" * 201,
    }.items():
        requirement = {"component": "UCP-D-015", "zarr": "UCP-D-016"}.get(name, "UCP-D-010")
        yield case(
            f"keys/atom-{name}",
            f"The key of an atom: {name}",
            (requirement, "UCP-R-010"),
            "UCP-E-KEY",
            put(*atom, "key", to=key),
            at=f"{at}/key",
        )
    yield case(
        "keys/atom-case",
        "Keys of atoms that differ in case alone",
        ("UCP-D-017",),
        "UCP-E-KEY",
        put(*atom, "key", to="Beta"),
        ops=(),
    )
    for name, new in {
        "long": "s" * 65,
        "hidden": ".s",
        "zarr": "zarr.JSON",
        "two": "a/b",
        "case": "EXP_avg",
    }.items():
        requirement = {"zarr": "UCP-D-016", "case": "UCP-D-031"}.get(name, "UCP-D-030")

        def renamed(draft: Draft, new: str = new) -> None:
            slots = draft.parts[0].index["atoms"][0]["slots"]
            slots[new] = slots.pop("value")

        yield case(
            f"slots/{name}", f"A slot name: {name}", (requirement,), "UCP-E-KEY", renamed, at=at, also=True
        )
    yield case(
        "index/layout",
        "A layout that is not there",
        ("UCP-D-032", "UCP-R-015"),
        "UCP-E-REFERENCE",
        put(*slot, "layout", to=1),
        at=f"{at}/slots/value/layout",
    )
    yield case(
        "index/dtype",
        "A data type that is not there",
        ("UCP-R-016",),
        "UCP-E-DTYPE",
        put(*slot, "dtype", to="uint4"),
        at=f"{at}/slots/value",
    )
    for name, shape, requirement in (
        ("dimensions", [1] * 33, "UCP-D-033"), ("bytes", [2**51, 3], "UCP-D-034"), ("bytes-with-zero", [0, 2**51, 2], "UCP-D-034"), ("overflow", [2**32, 2**32], "UCP-D-034"),
    ):  # fmt: skip
        yield case(
            f"limits/shape-{name}", f"A shape with too many {name}", (requirement, "UCP-R-015", "UCP-S-002", "UCP-S-003"), "UCP-E-SHAPE",
            put(*slot, "shape", to=shape), at=f"{at}/slots/value/shape",
        )  # fmt: skip
    yield case(
        "index/shape-other",
        "A shape with another number of chunks",
        ("UCP-D-113", "UCP-D-092", "UCP-S-002"),
        "UCP-E-TABLE",
        put(*slot, "shape", to=[2**40]),
        ops=("read",),
        also=True,
    )
