"""Bad checkpoints: root document and state document."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

from generate.cases import Case
from generate.mutations import (
    STATE,
    after,
    case,
    drop,
    override,
    put,
    several,
)
from ucp_conformance.drafting import Draft


def bad_document_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _root()
    yield from _state()


def _root() -> Iterator[Case]:
    for name, change in {
        "flipped": lambda text: text[:-1] + (b"0" if text[-1:] != b"0" else b"1"),
        "upper-case": bytes.upper,
    }.items():

        def damaged(files: dict[str, bytes], change: Callable[[bytes], bytes] = change) -> None:
            root = files["ucp.json"]
            start = root.index(b'"digest":"sha256:') + 17
            files["ucp.json"] = root[:start] + change(root[start : start + 64]) + root[start + 64 :]

        codes = ["UCP-E-DIGEST"] if name == "flipped" else ["UCP-E-DIGEST", "UCP-E-SCHEMA"]
        yield case(
            f"digest/root-{name}", f"The root digest, {name}", ("UCP-D-018", "UCP-R-012"), codes, after(damaged),
            at="ucp.json",
        )  # fmt: skip
    yield case(
        "digest/root-white-space", "A space more in the root document", ("UCP-D-018", "UCP-R-012"), "UCP-E-DIGEST",
        after(lambda files: files.update({"ucp.json": files["ucp.json"] + b" "})), at="ucp.json",
    )  # fmt: skip
    yield case(
        "digest/root-missing",
        "No root digest",
        ("UCP-D-018", "UCP-R-012"),
        ["UCP-E-DIGEST", "UCP-E-SCHEMA"],
        drop("root", "digest"),
        at="ucp.json",
    )

    def twice(draft: Draft) -> None:
        draft.root["annotations"] = {"copy": "@"}

        def copied(files: dict[str, bytes]) -> None:
            # Right for whoever replaces the digits in both places; of one alone a fixed point cannot be found.
            root = files["ucp.json"]
            start = root.index(b'"digest":"sha256:') + 17
            blank = root[:start] + b"0" * 64 + root[start + 64 :]
            blank = blank.replace(b'"@"', b'"' + b"0" * 64 + b'"')
            digits = hashlib.sha256(blank).hexdigest().encode()
            files["ucp.json"] = blank.replace(b"0" * 64, digits)

        draft.after.append(copied)

    yield case(
        "digest/root-twice",
        "The digits of the root digest twice",
        ("UCP-D-019", "UCP-R-012"),
        "UCP-E-DIGEST",
        twice,
        at="ucp.json",
    )
    schema: dict[str, tuple[Callable[[Draft], object], tuple[str, ...], str]] = {
        "unknown-member": (put("root", "colour", to=1), ("UCP-D-022",), "A member that nobody knows"),
        "storage-other": (put("root", "storage", to="zip"), (), "A storage that nobody knows"),
        "chunk-bytes-small": (put("root", "chunk_bytes", to=15), (), "chunk_bytes of 15"),
        "chunk-bytes-large": (put("root", "chunk_bytes", to=2**30 + 1), (), "chunk_bytes above 2^30"),
        "step-negative": (put("root", "progress", to={"step": -1}), (), "A negative step"),
        "mesh-size-zero": (put("root", "meshes", 0, "axes", 0, "size", to=0), (), "An axis of size 0"),
        "step-kind-unknown": (
            put("root", "layouts", 0, "steps", 0, to={"kind": "interleave"}),
            (),
            "A step of a kind that nobody knows",
        ),
        "scale-exponent": (
            put("root", "layouts", 0, "steps", 0, to={"kind": "scale", "exponent": 4097}),
            (),
            "A factor that no two floats differ by",
        ),
        "concat-group-empty": (
            put("root", "layouts", 0, "steps", 0, to={"kind": "concat", "group": ""}),
            (),
            "A concat whose group has no name",
        ),
        "shard-rule-and-sizes": (
            put("root", "layouts", 0, "steps", 0, "sizes", to=[3, 2]),
            (),
            "A shard with rule and sizes",
        ),
        "extension-member": (
            put("root", "extensions", to={"a.b": {"must_understand": False, "c": 1}}),
            ("UCP-D-022",),
            "An extension with a member more",
        ),
        "atoms-zero": (put("entry0", "atoms", to=0), ("UCP-D-025",), "A part that announces no atoms"),
    }
    for name, (mutate, more, title) in schema.items():
        yield case(f"root/{name}", title, ("UCP-R-014", *more), "UCP-E-SCHEMA", mutate)
    plain_packs = put(
        "root", "packs", to={"key": "index/x.json", "length": 1, "digest": "sha256:" + "1" * 64}
    )
    yield case(
        "root/plain-with-packs",
        "A pack list in storage plain",
        ("UCP-D-020",),
        "UCP-E-SCHEMA",
        plain_packs,
        parent="plain",
    )
    yield case(
        "root/packed-without-packs", "No pack list in storage packed", ("UCP-D-020",), "UCP-E-SCHEMA", lambda d: setattr(d, "packs", None), ops=("inspect",)
    )  # fmt: skip
    for name, key in {
        "dots": "index/../ucp.json", "absolute": "/index/a", "empty-component": "index//a", "hidden": "index/.a",
        "underscores": "index/__a", "final-dot": "index/a.", "backslash": "index\\a", "long": "index/" + "a" * 201,
        "space": "index/a b", "newline": "index/a\n", "not-ascii": "index/é",
    }.items():  # fmt: skip
        yield case(
            f"keys/{name}", f"A key: {name}", ("UCP-D-010", "UCP-R-010"), "UCP-E-KEY", override("index0", key=key), at="ucp.json#/parts/0/index/key"
        )  # fmt: skip
    for document, place in {
        "state": "/state/key",
        "packs": "/packs/key",
        "table0": "/parts/0/table/key",
    }.items():
        at = f"ucp.json#{place}"
        yield case(
            f"keys/room-{document.rstrip('0')}",
            f"The key of {document} in another room",
            ("UCP-D-014",),
            "UCP-E-KEY",
            override(document, key="packs/x"),
            at=at,
            also=True,
        )
    for name, key in {"claim": "index/claim", "claim-case": "index/Claim"}.items():
        yield case(
            f"keys/{name}", "The key of a writer's claim", ("UCP-D-013", "UCP-R-010"), "UCP-E-KEY", override("index0", key=key), at="ucp.json#/parts/0/index/key", also=True
        )  # fmt: skip
    yield case(
        "keys/twice", "One key for two documents", ("UCP-D-012",), "UCP-E-KEY", override("table0", key="index/a1-0.json"), at="ucp.json#/parts/0", also=True
    )  # fmt: skip
    yield case(
        "keys/case", "Two keys that differ in case alone", ("UCP-D-011",), "UCP-E-KEY", override("table0", key="index/A1-0.JSON"), at="ucp.json#/parts/0", also=True
    )  # fmt: skip
    entries: dict[str, tuple[Callable[[Draft], object], tuple[str, ...], str]] = {
        "first": (put("entry0", "first", to="aaa"), ("UCP-D-026",), "Another first name"),
        "last": (put("entry1", "last", to="zzz"), ("UCP-D-026",), "Another last name"),
        "count": (put("entry0", "atoms", to=2), ("UCP-D-026",), "Another number of atoms"),
        # Nothing in the root document contradicts it: the part alone does.
        "only-atom": (
            several(put("entry0", "first", to="alphb"), put("entry0", "last", to="alphb")),
            ("UCP-D-026",),
            "Another name of the only atom",
        ),
    }
    for name, (mutate, requirements, title) in entries.items():
        yield case(
            f"parts/{name}", title, (*requirements, "UCP-R-015"), "UCP-E-NAME", mutate, ops=("inspect",)
        )
    yield case(
        "parts/order",
        "Parts in the wrong order",
        ("UCP-D-027", "UCP-R-015"),
        "UCP-E-NAME",
        lambda d: d.parts.reverse(),
        at="ucp.json#/parts/1",
    )
    yield case(
        "layouts/mesh-index", "A mesh that is not there", ("UCP-D-044", "UCP-R-017"), "UCP-E-REFERENCE", put("root", "layouts", 0, "mesh", to=1),
        at="ucp.json#/layouts/0/mesh", ops=(),
    )  # fmt: skip
    yield case(
        "layouts/stored-axis", "A stored layout names an axis that is not there", ("UCP-D-045",), "UCP-E-LAYOUT",
        put("root", "layouts", 0, "steps", 0, "axis", to="pp"), at="ucp.json#/layouts/0", ops=(),
    )  # fmt: skip
    yield case(
        "layouts/stored-mesh", "A stored mesh with an axis twice", ("UCP-D-039",), "UCP-E-LAYOUT",
        put("root", "meshes", 0, "axes", 1, "name", to="dp"), at="ucp.json#/meshes/0", ops=(), also=True,
    )  # fmt: skip
    yield case(
        "layouts/stored-dim", "A stored layout does not fit its slot", ("UCP-D-045",), "UCP-E-LAYOUT",
        put("root", "layouts", 0, "steps", 0, "dim", to=2), ops=(),
        at=("ucp.json#/layouts/0", "index/a1-0.json#/atoms/0/slots"),
    )  # fmt: skip
    mesh = put("root", "meshes", 0, "axes", to=[{"name": "dp", "size": 2}, {"name": "tp", "size": 2**20}])
    yield case(
        "limits/mesh",
        "A mesh of 2^21 coordinates",
        ("UCP-D-041", "UCP-R-003"),
        "UCP-E-LIMIT",
        mesh,
        at="ucp.json#/meshes/0",
        ops=(),
        also=True,
    )


def _state() -> Iterator[Case]:
    for name in ("values", "optimizers", "blobs"):
        yield case(
            f"state/without-{name}",
            f"No {name}",
            ("UCP-D-085",),
            "UCP-E-SCHEMA",
            drop("state", name),
            also=True,
        )
    yield case(
        "state/unknown-member",
        "A member that nobody knows",
        ("UCP-D-022",),
        "UCP-E-SCHEMA",
        put("state", "more", to={}),
    )
    group = ("state", "optimizers", "optim", "groups")
    yield case(
        "state/group-unknown",
        "A group names no atom",
        ("UCP-D-086",),
        "UCP-E-REFERENCE",
        put(*group, 0, "atoms", 0, to="gamma"),
        at=f"{STATE}#/optimizers/optim/groups/0/atoms/0",
        ops=(),
    )
    yield case(
        "state/group-twice",
        "An atom twice in a group",
        ("UCP-D-087",),
        "UCP-E-NAME",
        put(*group, 0, "atoms", to=["alpha", "alpha"]),
        at=STATE,
    )
    two = [{"atoms": ["alpha"], "options": {}}, {"atoms": ["alpha", "beta"], "options": {}}]
    yield case(
        "state/groups-twice",
        "An atom in two groups of one optimizer",
        ("UCP-D-087",),
        "UCP-E-NAME",
        put("state", "optimizers", "optim", "groups", to=two),
        at=STATE,
    )
    yield case(
        "blobs/key-twice",
        "Two blobs of one key",
        ("UCP-D-012",),
        "UCP-E-KEY",
        lambda draft: (
            draft.state["blobs"].update(more=draft.state["blobs"]["extra"]) if draft.state else None
        ),
        at=f"{STATE}#/blobs",
    )
    blob = ("state", "blobs", "extra", "object", "key")
    for name, key in {"room": "index/x", "dots": "blobs/../x", "hidden": "blobs/.x"}.items():
        yield case(
            f"blobs/key-{name}",
            f"The key of a blob: {name}",
            ("UCP-D-014", "UCP-R-010"),
            "UCP-E-KEY",
            put(*blob, to=key),
            at=f"{STATE}#/blobs/extra/object/key",
            also=True,
        )
