"""Software of today meets checkpoints of tomorrow: version, features, extensions, and what takes precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from generate.cases import Case, bad_case, checks_of_good, refusal
from generate.parents import PARENTS
from ucp_conformance.drafting import Draft

__all__ = ["forward_cases"]

BROKEN: dict[str, Callable[[Draft], object]] = {
    "sound": lambda draft: None,
    "schema": lambda draft: draft.root.update(storage="cloud", colour=1),
    "no-digest": lambda draft: draft.root.pop("digest"),
    "keys": lambda draft: draft.overrides.update(index0={"key": "../x"}),
}


# What depends on the content of the root is not said of a version or a feature that nobody knows (UCP-V-005).
BESIDE: dict[str, tuple[str, ...]] = {
    "UCP-E-VERSION": ("UCP-E-DIGEST", "UCP-E-FEATURE", "UCP-E-SCHEMA", "UCP-E-KEY"),
    "UCP-E-FEATURE": ("UCP-E-FEATURE-SET",),
}


def forward_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    for name, change in BROKEN.items():
        yield _refused(
            f"version/{name}", f"An unknown version, content: {name}", ("UCP-R-007", "UCP-D-006"), "UCP-E-VERSION", ("format_version", 1), change, "/format_version"
        )  # fmt: skip
        if name == "no-digest":
            continue
        unknown = ["a-feature-of-tomorrow"]
        yield _refused(
            f"feature/{name}",
            f"An unknown read feature, content: {name}",
            ("UCP-R-008", "UCP-V-001", "UCP-V-005"),
            "UCP-E-FEATURE",
            ("read_features", unknown),
            change,
            "/read_features",
        )
        extensions: dict[str, Any] = {
            "must": {"must_understand": True},
            "default": {},
            "string": "x",
            "null": {"must_understand": None},
        }
        for kind, value in extensions.items():
            if kind not in ("must", "default") and name != "sound":
                continue
            yield _refused(
                f"extension/{kind}-{name}", f"An unknown extension ({kind}), content: {name}", ("UCP-R-030",), "UCP-E-EXTENSION",
                ("extensions", {"org.example.new": value}), change, "/extensions",
            )  # fmt: skip
    yield _refused(
        "version/and-feature", "An unknown version goes before an unknown feature", ("UCP-R-007",), "UCP-E-VERSION", ("format_version", 7),
        lambda draft: draft.root.update(read_features=["tomorrow"]), "/format_version",
    )  # fmt: skip
    yield _refused(
        "feature/and-extension", "An unknown feature goes before an unknown extension", ("UCP-R-008",), "UCP-E-FEATURE", ("read_features", ["tomorrow"]),
        lambda draft: draft.root.update(extensions={"org.example.new": {}}), "/read_features",
    )  # fmt: skip
    yield _refused(
        "version/and-digest", "An unknown version goes before the root digest", ("UCP-R-007",), "UCP-E-VERSION", ("format_version", 1), flipped, "/format_version"
    )  # fmt: skip
    yield _refused(
        "digest/and-feature", "The root digest goes before an unknown feature", ("UCP-R-012",), "UCP-E-DIGEST", ("read_features", ["tomorrow"]), flipped, "/digest"
    )  # fmt: skip
    for storage in ("plain", "packed"):
        yield _ignored(storage)
        yield from _rewritten(storage)


def flipped(draft: Draft) -> None:
    """Add a space after the root document was sealed."""
    draft.after.append(lambda files: files.update({"ucp.json": files["ucp.json"] + b" "}))


def _refused(
    path: str, title: str, requirements: tuple[str, ...], code: str, member: tuple[str, Any], change: Callable[[Draft], object], at: str
) -> Case:  # fmt: skip
    def mutate(draft: Draft) -> None:
        draft.root[member[0]] = member[1]
        change(draft)

    made = bad_case(
        path,
        title,
        requirements,
        code,
        PARENTS["packed"](),
        mutate,
        parent="packed",
        at=f"ucp.json#{at}",
        also=True,
        never=BESIDE.get(code, ()),
    )
    made.id = f"forward/{path}"
    made.checks.append(
        refusal("rewrite", [code], [f"ucp.json#{at}"], params={"storage": "packed"}, role="rewriter")
    )
    return made


def _ignored(storage: str) -> Case:
    """Return a case in which a reader takes a checkpoint with an unknown write feature, a rewriter refuses it."""
    draft = PARENTS[storage]()
    checks, expected, _ = checks_of_good(draft, rewrite=False)
    draft.root["write_features"] = ["tomorrow"]
    checks = [check for check in checks if check["role"] == "reader"]
    checks.append(
        refusal(
            "rewrite",
            ["UCP-E-FEATURE"],
            ["ucp.json#/write_features"],
            params={"storage": storage},
            role="rewriter",
        )
    )
    return Case(
        f"forward/write-feature/{storage}",
        "An unknown write feature",
        ("UCP-R-009", "UCP-W-001"),
        checks,
        draft.files(),
        expected,
    )


def _rewritten(storage: str) -> Iterator[Case]:
    keep = {"must_understand": False, "safe_to_copy": True, "configuration": {"a": [1, None]}}
    for name, extension, kept in (
        ("copied", keep, True), ("dropped", {"must_understand": False}, False), ("dropped-explicitly", {**keep, "safe_to_copy": False}, False),
    ):  # fmt: skip
        draft = PARENTS[storage]()
        draft.root |= {"extensions": {"org.example.new": extension}, "annotations": {"org.example": {"b": 1}}}
        checks, expected, _ = checks_of_good(draft, rewrite=False)
        for target in ("plain", "packed"):
            checks.append(
                {
                    "name": f"rewrite-{target}", "role": "rewriter", "level": "full", "op": "rewrite", "params": {"storage": target},
                    "expect": {"rewritten": {"extensions": {"org.example.new": extension} if kept else {}}},
                }
            )  # fmt: skip
        requirements = ("UCP-R-030", "UCP-W-032" if kept else "UCP-W-031", "UCP-R-031")
        yield Case(
            f"forward/rewrite/{name}-{storage}",
            f"An unknown extension is {name.replace('-', ' ')}",
            requirements,
            checks,
            draft.files(),
            expected,
        )
