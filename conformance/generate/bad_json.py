"""Bad checkpoints: JSON and the envelope."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from generate.cases import Case
from generate.mutations import (
    INDEX,
    PACKS,
    STATE,
    bent,
    case,
    drop,
    inserted,
    put,
    several,
)
from ucp_conformance.drafting import Draft


def bad_json_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _json()
    yield from _envelope()


JSON: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "byte-order-mark": ("UCP-D-001", lambda data: b"\xef\xbb\xbf" + data, "A byte order mark"),
    "latin-1": ("UCP-D-001", inserted(b'"x":"\xe9"'), "A byte that is not UTF-8"),
    "utf-16": ("UCP-D-001", lambda data: data.decode().encode("utf-16-le"), "UTF-16"),
    "surrogate-in-utf-8": ("UCP-D-001", inserted(b'"x":"\xed\xa0\x80"'), "A surrogate encoded in UTF-8"),
    "duplicate-name": ("UCP-D-002", inserted(b'"x":1,"x":1'), "A member name twice"),
    "duplicate-escaped": ("UCP-D-002", inserted(b'"x":1,"\\u0078":1'), "A member name twice, once escaped"),
    "duplicate-deep": (
        "UCP-D-002",
        inserted(b'"x":[{"y":{"a":1,"b":2,"a":3}}]'),
        "A member name twice, deep inside",
    ),
    "integer-large": ("UCP-D-003", inserted(b'"x":9007199254740992'), "An integer of 2^53"),
    "integer-large-negative": ("UCP-D-003", inserted(b'"x":-9007199254740992'), "An integer of -2^53"),
    "nan": ("UCP-D-004", inserted(b'"x":NaN'), "NaN"),
    "infinity": ("UCP-D-004", inserted(b'"x":-Infinity'), "-Infinity"),
    "overflow": ("UCP-D-004", inserted(b'"x":1e400'), "A number that overflows binary64"),
    "lone-surrogate": ("UCP-D-004", inserted(b'"x":"\\ud800"'), "An unpaired surrogate"),
    "lone-low-surrogate": ("UCP-D-004", inserted(b'"x":"a\\udc00\\ud800"'), "Surrogates in the wrong order"),
    "lone-surrogate-name": ("UCP-D-004", inserted(b'"\\udfff":1'), "An unpaired surrogate in a member name"),
    "comment": ("UCP-R-002", lambda data: b"/* */" + data, "A comment"),
    "trailing-comma": ("UCP-R-002", inserted(b'"x":[1,]'), "A trailing comma"),
    "single-quotes": ("UCP-R-002", inserted(b"'x':1"), "Single quotes"),
    "leading-zero": ("UCP-R-002", inserted(b'"x":01'), "A number with a leading zero"),
    "plus": ("UCP-R-002", inserted(b'"x":+1'), "A number with a plus sign"),
    "control-character": ("UCP-R-002", inserted(b'"x":"\t"'), "A control character in a string"),
    "second-value": ("UCP-R-002", lambda data: data + b"{}", "A second value"),
    "cut": ("UCP-R-002", lambda data: data[:-1], "The last byte is missing"),
    "empty": ("UCP-R-002", lambda _: b"", "No bytes at all"),
    "unknown-escape": ("UCP-R-002", inserted(b'"x":"\\x41"'), "An escape that JSON does not have"),
    "form-feed": ("UCP-R-002", lambda data: b"\x0c" + data, "White space that JSON does not have"),
}


def _json() -> Iterator[Case]:
    documents = {"root": "ucp.json", "state": STATE, "index0": INDEX, "packs": PACKS}
    for name, (requirement, change, title) in JSON.items():
        for document, key in documents.items():
            if document in ("packs", "index0") and name not in ("duplicate-name", "nan", "cut"):
                continue
            op = "read" if document == "packs" else "inspect"
            yield case(
                f"json/{name}-{document.rstrip('0')}", f"{title} ({document.rstrip('0')})", (requirement, "UCP-R-002"),
                "UCP-E-JSON", bent(document, change), ops=(op,), at=key,
            )  # fmt: skip
    deep = inserted(b'"x":' + b"[" * 64 + b"]" * 64)
    for document in ("root", "state"):
        yield case(
            f"limits/nesting-{document}", f"65 levels of nesting ({document})", ("UCP-D-005", "UCP-R-003"), "UCP-E-LIMIT",
            bent(document, deep), at=documents[document],
        )  # fmt: skip
    very = inserted(b'"x":' + b"[" * 50000 + b"]" * 50000)
    yield case(
        "limits/nesting-stack", "50,000 levels of nesting", ("UCP-D-005", "UCP-R-003"), "UCP-E-LIMIT", bent("root", very), at="ucp.json"
    )  # fmt: skip


def _envelope() -> Iterator[Case]:
    wrong: dict[str, tuple[Callable[[Draft], object], str]] = {
        "format-other": (put("root", "format", to="UCP"), "Another format"),
        "version-string": (put("root", "format_version", to="0"), "The version as a string"),
        "version-boolean": (put("root", "format_version", to=False), "The version as a boolean"),
        "version-fraction": (put("root", "format_version", to=0.5), "The version with a fraction"),
        "features-object": (put("root", "read_features", to={}), "Features as an object"),
        "feature-number": (put("root", "write_features", to=[1]), "A feature that is no string"),
        "extensions-array": (put("root", "extensions", to=[]), "Extensions as an array"),
        "annotations-null": (put("root", "annotations", to=None), "Annotations as null"),
        "not-an-object": (bent("root", lambda _: b"[]"), "The root document is an array"),
    }
    for name in ("format", "format_version", "read_features", "write_features", "extensions", "annotations"):
        wrong[f"without-{name.replace('_', '-')}"] = (drop("root", name), f"No {name}")
    for name, (mutate, title) in wrong.items():
        yield case(
            f"envelope/{name}", title, ("UCP-D-006", "UCP-R-006"), "UCP-E-FORMAT", mutate, at="ucp.json"
        )
    lists = {
        "unsorted": (
            put("root", "read_features", to=["zstd", "blosc"]),
            ("UCP-D-007", "UCP-D-009"),
        ),
        "superfluous": (put("root", "read_features", to=["zstd"]), ("UCP-D-009",)),
    }
    for name, (mutate, requirements) in lists.items():
        yield case(
            f"features/{name}",
            f"Feature list: {name}",
            requirements,
            "UCP-E-FEATURE-SET",
            mutate,
            at="ucp.json",
            ops=(),
        )

    def undeclared(draft: Draft) -> None:
        compressor = {"name": "zstd", "configuration": {"checksum": False, "level": 3}}
        draft.parts[1].index["atoms"][0]["slots"]["master"]["compressor"] = compressor

    yield case(
        "features/undeclared", "A feature that is needed and not declared", ("UCP-D-009",), "UCP-E-FEATURE-SET",
        undeclared, at="ucp.json#/read_features", ops=(),
    )  # fmt: skip
    both = put("root", "write_features", to=["zstd"])
    yield case(
        "features/both", "One feature in both lists", ("UCP-D-008", "UCP-D-009"), "UCP-E-FEATURE-SET",
        several(both, undeclared, put("root", "read_features", to=["zstd"])), ops=(), at="ucp.json",
        features=("zstd",),
    )  # fmt: skip
    twice = several(undeclared, put("root", "read_features", to=["zstd", "zstd"]))
    yield case(
        "features/twice", "A feature twice", ("UCP-D-007",), "UCP-E-FEATURE-SET", twice, at="ucp.json#/read_features",
        features=("zstd",),
    )  # fmt: skip
    # Readers without the features of the others stop at those: write features are nobody's reason to stop.
    yield case(
        "features/twice-write", "A write feature twice", ("UCP-D-007",), "UCP-E-FEATURE-SET",
        put("root", "write_features", to=["a", "a"]), at="ucp.json#/write_features",
    )  # fmt: skip
    yield case(
        "features/unsorted-write", "Write features that are not sorted", ("UCP-D-007",), "UCP-E-FEATURE-SET",
        put("root", "write_features", to=["b", "a"]), at="ucp.json#/write_features",
    )  # fmt: skip
