"""Bad checkpoints: what is missing, cut, or a link; stated lengths; packs."""

from __future__ import annotations

from collections.abc import Iterator

from generate.cases import Case
from generate.mutations import (
    CHUNK,
    INDEX,
    PACK,
    PACKS,
    STATE,
    TABLE,
    after,
    case,
    flipped,
    longer,
    put,
    shorter,
    without,
)
from ucp_conformance.drafting import Draft


def bad_commit_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield case(
        "torn/no-root", "Everything but the root document", ("UCP-R-013", "UCP-W-003"), "UCP-E-NOT-FOUND", without("ucp.json")
    )  # fmt: skip
    for name, key, ops in (
        ("index", INDEX, ("read",)), ("table", TABLE, ("read",)), ("state", STATE, ("inspect",)), ("packs", PACKS, ("read",)),
    ):  # fmt: skip
        r12 = ("UCP-D-021", "UCP-R-013")
        yield case(
            f"torn/{name}-missing",
            f"No {name}",
            ("UCP-R-013", "UCP-W-002"),
            "UCP-E-MISSING",
            without(key),
            at=key,
            ops=ops,
        )
        yield case(
            f"torn/{name}-longer",
            f"A byte behind the {name}",
            r12,
            "UCP-E-LENGTH",
            longer(key),
            at=key,
            ops=ops,
            also=True,
        )
        yield case(
            f"torn/{name}-shorter",
            f"The {name} lacks a byte",
            r12,
            "UCP-E-LENGTH",
            shorter(key),
            at=key,
            ops=ops,
            also=True,
        )
        yield case(
            f"digest/{name}",
            f"One bit of the {name}",
            r12,
            "UCP-E-DIGEST",
            flipped(key, -2),
            at=key,
            ops=ops,
            also=True,
        )
    yield case(
        "torn/root-cut",
        "A part of the root document",
        ("UCP-W-003", "UCP-R-002"),
        "UCP-E-JSON",
        after(lambda f: f.update({"ucp.json": f["ucp.json"][:200]})),
    )
    yield case(
        "torn/root-empty",
        "An empty root document",
        ("UCP-W-003", "UCP-R-002"),
        "UCP-E-JSON",
        after(lambda f: f.update({"ucp.json": b""})),
    )
    for name, mutate, code in (
        ("missing", without("blobs/a1-0"), "UCP-E-MISSING"),
        ("longer", longer("blobs/a1-0"), "UCP-E-LENGTH"),
        ("digest", flipped("blobs/a1-0", 0), "UCP-E-DIGEST"),
    ):
        yield case(
            f"blobs/{name}",
            f"A blob: {name}",
            ("UCP-D-021", "UCP-R-013"),
            code,
            mutate,
            at="blobs/a1-0",
            ops=("read-blob",),
            params={"blob": "extra"},
            level="full",
        )
    links = [
        ("index", INDEX, "read"), ("table", TABLE, "read"), ("pack", PACK, "read"), ("root", "ucp.json", "inspect"), ("folder", "index", "read"),
    ]  # fmt: skip
    for name, key, op in links:
        yield case(
            f"links/{name}", f"A symbolic link in place of the {name}", ("UCP-S-001",), "UCP-E-LINK", lambda _: None, ops=(op,), also=True,
            setup=[{"link": key}],
        )  # fmt: skip
    yield case(
        "links/chunk",
        "A symbolic link in place of a chunk",
        ("UCP-S-001",),
        "UCP-E-LINK",
        lambda _: None,
        "plain",
        ops=("read",),
        also=True,
        setup=[{"link": CHUNK}],
    )
    yield case(
        "links/pipe",
        "A pipe in place of the index",
        ("UCP-S-001",),
        "UCP-E-LINK",
        lambda _: None,
        ops=("read",),
        also=True,
        setup=[{"pipe": INDEX}],
    )
    yield case(
        "limits/root",
        "A root document of more than 4 MiB",
        ("UCP-R-003",),
        "UCP-E-LIMIT",
        lambda _: None,
        setup=[{"pad": "ucp.json", "to": 2**22 + 1}],
        at="ucp.json",
    )
    for name, length in {"index0": 2**28 + 1, "table0": 2**30 + 1, "state": 2**28 + 1}.items():

        def stated(draft: Draft, name: str = name, length: int = length) -> None:
            draft.overrides[name] = {"length": length}

        yield case(
            f"limits/length-{name.rstrip('0')}", f"A stated length above the limit ({name.rstrip('0')})", ("UCP-R-003", "UCP-S-002"), "UCP-E-LIMIT", stated,
            at="ucp.json", also=True,
        )  # fmt: skip
    yield case(
        "packs/key-twice",
        "A pack twice in the list",
        ("UCP-D-100",),
        "UCP-E-KEY",
        lambda d: d.packs and d.packs["packs"].append(d.packs["packs"][0]),
        at=PACKS,
        ops=("read",),
        also=True,
    )
    yield case(
        "packs/room",
        "A pack in another room",
        ("UCP-D-014", "UCP-R-010"),
        "UCP-E-KEY",
        put("packs", "packs", 0, "key", to="index/x.pack"),
        at=f"{PACKS}#/packs/0/key",
        ops=("read",),
        also=True,
    )
    key = "packs/a1-0-9.pack"

    def unused(draft: Draft) -> None:
        if draft.packs is not None:
            draft.packs["packs"].append({"key": key, "length": 1})
        draft.objects[key] = b"\0"

    yield case("packs/unused", "A pack without segments", ("UCP-D-118",), ["UCP-E-SEGMENT"], unused, ops=())
