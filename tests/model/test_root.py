"""The root document: digest, precedence of refusals, content (SPEC 7, 10, 17.1)."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucpformat import jsonio
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.envelope import Envelope, Extension
from ucpformat.model.references import DocumentRef
from ucpformat.model.root import MAX_ROOT_BYTES, Part, Producer, Progress, Root, parse_root, root_digest

MESH = Mesh((MeshAxis("dp", 2), MeshAxis("tp", 2)), (3, 1, 0, 2))
OTHER = Mesh((MeshAxis("pp", 3),))
ROOT = Root(
    envelope=Envelope(
        read_features=("zstd",),
        extensions={"org.example.moe": Extension(must_understand=False, safe_to_copy=True)},
        annotations={"org.example": {"note": "é"}},
    ),
    storage="packed",
    chunk_bytes=1 << 20,
    meshes=(MESH, OTHER),
    layouts=(Layout(OTHER), Layout(MESH, (Shard("tp", 0),))),
    packs=DocumentRef.to("index/t-packs.json", b"packs"),
    state=DocumentRef.to("index/t-state.json", b"state"),
    parts=(
        Part("a", "b", 2, DocumentRef.to("index/t-0.json", b"0"), DocumentRef.to("index/t-0.bin", b"00")),
        Part("c", "c", 1, DocumentRef.to("index/t-1.json", b"1"), DocumentRef.to("index/t-1.bin", b"11")),
    ),
    producer=Producer("test", "1"),
    progress=Progress(7),
)
SEALED, _ = ROOT.seal()
UNDERSTOOD = frozenset({"zstd"})


def parse(data: bytes, extensions: frozenset[str] = frozenset()) -> Root:
    return parse_root(data, features=UNDERSTOOD, extensions=extensions)


def sealed(value: Any) -> bytes:
    """``value`` with its digest set by the text of UCP-D-018 and not by `Root.seal`."""
    value = {**value, "digest": "sha256:" + "0" * 64}
    blank = jsonio.dumps_canonical(value)
    digits = hashlib.sha256(blank).hexdigest().encode()
    return blank.replace(b'"digest":"sha256:' + b"0" * 64, b'"digest":"sha256:' + digits, 1)


def content() -> Any:
    return jsonio.loads(SEALED, at="ucp.json")


def refusal(data: bytes) -> UcpError:
    with pytest.raises(UcpError) as caught:
        parse(data)
    return caught.value


def test_what_was_sealed_is_parsed() -> None:
    root = parse(SEALED)
    assert replace(root, digest=ROOT.digest) == ROOT
    assert root.seal() == (SEALED, root.digest)
    assert root.digest == root_digest(SEALED, root.digest)


def test_the_digest_is_that_of_the_specification() -> None:
    """UCP-D-018."""
    recorded = re.search(rb'"digest": "sha256:([0-9a-f]{64})",\n', SEALED)
    assert recorded is not None
    blank = SEALED.replace(recorded[1], b"0" * 64)
    assert hashlib.sha256(blank).hexdigest().encode() == recorded[1]


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(place: int, change: int) -> None:
    """UCP-R-012: or it is no JSON or envelope any more, which is found before."""
    damaged = bytearray(SEALED)
    damaged[place] ^= change
    assert refusal(bytes(damaged)).code in {"UCP-E-DIGEST", "UCP-E-JSON", "UCP-E-FORMAT", "UCP-E-VERSION"}


@given(st.integers(0, len(SEALED) - 1))
def test_any_cut_is_refused(length: int) -> None:
    expected = {"UCP-E-JSON"} if length < len(SEALED.rstrip()) else {"UCP-E-DIGEST"}
    assert refusal(SEALED[:length]).code in expected


def test_digits_that_occur_twice_are_refused() -> None:
    """UCP-D-019."""
    value = content()
    value["annotations"] = {"copy": parse(SEALED).digest}
    assert refusal(jsonio.dumps_canonical(value)).code == "UCP-E-DIGEST"


def test_digits_that_occur_overlapping_are_refused() -> None:
    with pytest.raises(UcpError, match="exactly once"):
        root_digest(b"a" * 65, "sha256:" + "a" * 64)


def test_digits_written_as_escapes_are_refused() -> None:
    escaped = SEALED.replace(b'"digest": "sha256:', b'"digest": "sha256\\u003a', 1)
    digits = parse(SEALED).digest[7:].encode()
    escaped = escaped.replace(digits, b"".join(b"\\u%04x" % digit for digit in digits), 1)
    assert refusal(escaped).code == "UCP-E-DIGEST"


@pytest.mark.parametrize("digest", [None, 7, "", "sha256:", "sha256:" + "0" * 63])
def test_a_missing_or_malformed_digest_is_refused_as_a_digest(digest: object) -> None:
    value = content()
    value["digest"] = digest
    assert refusal(jsonio.dumps_canonical(value)).code == "UCP-E-DIGEST"
    del value["digest"]
    assert refusal(jsonio.dumps_canonical(value)).code == "UCP-E-DIGEST"


def _set(*path: str | int, to: Any) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        for step in path[:-1]:
            value = value[step]
        value[path[-1]] = to

    return change


# One fault for each refusal of steps 3 to 7, in the order in which they take precedence (SPEC 17.1).
FAULTS: dict[str, Callable[[Any], None]] = {
    "UCP-E-FORMAT": _set("format", to="zarr"),
    "UCP-E-VERSION": _set("format_version", to=1),
    "UCP-E-DIGEST": lambda value: None,
    "UCP-E-FEATURE": lambda value: value["read_features"].append("zzz"),
    "UCP-E-EXTENSION": _set("extensions", "org.example.new", to={}),
    "UCP-E-SCHEMA": _set("producer", "url", to=""),
    "UCP-E-LIMIT": _set("state", "length", to=(1 << 28) + 1),
    "UCP-E-KEY": _set("parts", 1, "index", "key", to="index/../x"),
    "UCP-E-NAME": _set("parts", 1, "atoms", to=2),
    "UCP-E-REFERENCE": _set("layouts", 0, "mesh", to=2),
    "UCP-E-FEATURE-SET": _set("write_features", to=["zstd"]),
    "UCP-E-LAYOUT": _set("meshes", 0, "axes", 0, "name", to="tp"),
}


@given(st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
def test_the_first_refusal_by_precedence_is_raised(codes: set[str]) -> None:
    """UCP-R-006, UCP-R-007, UCP-R-008, UCP-R-014, UCP-R-030."""
    value = content()
    for code in codes:
        FAULTS[code](value)
    data = sealed(value)
    if "UCP-E-DIGEST" in codes:
        data += b"\n"
    assert refusal(data).code == next(code for code in FAULTS if code in codes)


@given(st.sets(st.sampled_from(sorted(set(FAULTS) - {"UCP-E-DIGEST", "UCP-E-FEATURE", "UCP-E-EXTENSION"}))))
def test_structure_reports_all_that_is_wrong_with_the_content(codes: set[str]) -> None:
    structural = {"UCP-E-FORMAT", "UCP-E-VERSION", "UCP-E-SCHEMA"}
    value = content()
    for code in codes - structural:
        FAULTS[code](value)
    _, problems = Root.structure(value, at="ucp.json")
    found = {problem.code for problem in problems}
    assert found >= codes - structural
    assert bool(problems) == bool(codes - structural)


def test_the_root_is_refused_before_it_is_parsed_when_it_is_too_long() -> None:
    """UCP-R-003."""
    assert refusal(b"{" + b" " * MAX_ROOT_BYTES).code == "UCP-E-LIMIT"
    longest = SEALED[:-1] + b" " * (MAX_ROOT_BYTES - len(SEALED)) + b"\n"
    assert refusal(longest).code == "UCP-E-DIGEST"


def test_a_root_over_the_limit_is_not_sealed() -> None:
    """UCP-S-005."""
    annotated = replace(ROOT, envelope=Envelope(annotations={"x": "y" * MAX_ROOT_BYTES}))
    with pytest.raises(UcpError, match="UCP-E-LIMIT"):
        annotated.seal()


def test_write_features_are_ignored() -> None:
    """UCP-R-009."""
    value = content()
    value["write_features"] = ["unheard-of"]
    assert parse(sealed(value)).envelope.write_features == ("unheard-of",)


@pytest.mark.parametrize("extension", [{}, {"must_understand": True}, {"must_understand": 0}, None, []])
def test_an_unknown_extension_has_to_be_understood_unless_it_says_otherwise(extension: object) -> None:
    value = content()
    value["extensions"]["org.example.new"] = extension
    refused = refusal(sealed(value))
    assert (refused.code, refused.at) == ("UCP-E-EXTENSION", "ucp.json#/extensions/org.example.new")


def test_a_known_extension_is_read() -> None:
    value = content()
    value["extensions"] = {"org.example.new": {"configuration": {"x": 1}}}
    root = parse(sealed(value), frozenset({"org.example.new"}))
    assert root.envelope.extensions == {"org.example.new": Extension(configuration={"x": 1})}


@pytest.mark.parametrize(
    ("change", "code", "at"),
    [
        (_set("parts", 0, "first", to=""), "UCP-E-NAME", "/parts/0/first"),
        (_set("parts", 0, "last", to="a"), "UCP-E-NAME", "/parts/0/last"),
        (_set("parts", 1, "first", to="b"), "UCP-E-NAME", "/parts/1/first"),
        (_set("parts", 1, "last", to="\x7f"), "UCP-E-NAME", "/parts/1/last"),
        (_set("parts", 0, "table", "key", to="atoms/t-0.bin"), "UCP-E-KEY", "/parts/0/table/key"),
        (_set("state", "key", to="index/T-packs.json"), "UCP-E-KEY", "/state/key"),
        (_set("packs", "key", to="index/a%2fb"), "UCP-E-KEY", "/packs/key"),
        (_set("parts", 0, "table", "length", to=(1 << 30) + 1), "UCP-E-LIMIT", "/parts/0/table/length"),
        (_set("read_features", to=["zstd", "zstd"]), "UCP-E-FEATURE-SET", "/read_features"),
        (_set("write_features", to=["b", "a"]), "UCP-E-FEATURE-SET", "/write_features"),
        (_set("layouts", 1, "steps", 0, "axis", to="pp"), "UCP-E-LAYOUT", "/layouts/1/steps/0/axis"),
        (_set("meshes", 0, "ranks", to=[0, 1, 2]), "UCP-E-LAYOUT", "/meshes/0/ranks"),
    ],
)
def test_content_is_refused_at_its_place(change: Callable[[Any], None], code: str, at: str) -> None:
    """UCP-D-007, UCP-D-008, UCP-D-010, UCP-D-011, UCP-D-014, UCP-D-023, UCP-D-027, UCP-D-040, UCP-D-045."""
    value = copy.deepcopy(content())
    change(value)
    refused = refusal(sealed(value))
    assert (refused.code, refused.at) == (code, f"ucp.json#{at}")
