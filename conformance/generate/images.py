"""Process images (SPEC section 15.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from generate.cases import Case, checks_of_good
from generate.mutations import STATE, after, case, put, several
from generate.parents import PARENTS
from ucp_conformance.drafting import Draft

__all__ = ["image_cases"]

FEATURE = ("process-images",)
Json = dict[str, Any]


def image_cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _good()
    yield from _bad()


def image(*path: str | int, to: Any) -> Callable[[Draft], object]:
    """Set something of the image that is required."""
    return put("state", "images", "trainer/0", *path, to=to)


def path(number: int, to: str) -> Callable[[Draft], object]:
    """Set the path of a file."""
    return image("files", number, "path", to=to)


def _good() -> Iterator[Case]:
    def good(name: str, title: str, *changes: Callable[[Draft], object], needs: bool = True) -> Case:
        draft = PARENTS["image"]()
        several(*changes)(draft)
        checks, expected, _ = checks_of_good(draft)
        requirements = ["UCP-D-009", "UCP-D-148", "UCP-D-149", "UCP-W-027", "UCP-W-030"]
        if needs:
            requirements.append("UCP-R-035")
        checks += _under_layouts(checks, is_required=needs)
        return Case(
            f"good/images/{name}", title, requirements, checks, draft.files(), expected,
            features=FEATURE if needs else (),
        )  # fmt: skip

    optional = [image("required", to=False), put("root", "read_features", to=[])]
    yield good("required", "An image without which nothing goes on, and one that is spare")
    yield good("optional", "Images that nobody needs: no feature", *optional, needs=False)
    yield good("beside", "Paths that look alike, and are beside one another", path(1, "ckpt.dmtcp.sh"))
    yield good("deep", "Directories that files share", path(0, "a/b/c"), path(1, "a/b/d"))
    yield good("host", "Hosts of any terms, and none", image("host", to={"": "", "gpu/0": "H200"}))
    yield good("no-rank", "A process that had no rank", _without("rank"))


def _without(member: str) -> Callable[[Draft], object]:
    return lambda draft: (draft.state or {})["images"]["trainer/0"].pop(member)


def _under_layouts(checks: list[Json], *, is_required: bool) -> Iterator[Json]:
    """Yield reads under a layout: with the images that are required named, with others, with none."""
    whole = next(check for check in checks if check["params"] == {"atom": "a", "slot": "value"})
    shape = whole["expect"]["tensor"]["shape"]
    local = {"coordinate": [0], "shape": shape, "file": whole["expect"]["file"]}
    found = {"dtype": "float32", "locals": [local]}
    refused = {"error": {"codes": ["UCP-E-MISMATCH"]}} if is_required else found
    for name, restored, expect in (
        ("restored", ["trainer/0"], found),
        ("all-restored", ["spare", "trainer/0"], found),
        ("not-restored", [], refused),
        ("another-restored", ["spare"], refused),
    ):
        params = {
            "atom": "a", "slot": "value", "mesh": {"axes": [{"name": "dp", "size": 1}]}, "steps": [], "restored": restored,
        }  # fmt: skip
        yield {
            "name": name, "role": "reader", "level": "reshard", "op": "read", "params": params, "expect": expect,
        }  # fmt: skip


def _bad() -> Iterator[Case]:
    def bad(
        name: str, title: str, rule: str, code: str, *changes: Callable[[Draft], object], **options: Any
    ) -> Case:
        return case(
            f"images/{name}", title, (rule,), code, several(*changes), parent="image", ops=(),
            features=options.pop("features", FEATURE), **options,
        )  # fmt: skip

    features = "ucp.json#/read_features"
    yield bad("undeclared", "Required, and no feature says so", "UCP-D-009", "UCP-E-FEATURE-SET",
              put("root", "read_features", to=[]), at=features, features=())  # fmt: skip
    yield bad("superfluous", "The feature, and nothing required", "UCP-D-009", "UCP-E-FEATURE-SET",
              image("required", to=False), at=features)  # fmt: skip
    for name, wrong in (
        ("above", "../x"), ("absolute", "/etc/x"), ("empty", ""), ("empty-component", "a//b"), ("dot", "./x"),
        ("hidden", ".ssh"), ("backslash", "a\\b"), ("null", "a\0b"), ("slash-behind", "a/"), ("above-within", "a/../b"),
        ("not-ascii", "\u00e9"), ("right-to-left", "a\u202eb"), ("long", "x" * 201),
    ):  # fmt: skip
        yield bad(f"path-{name}", f"A path: {name}", "UCP-D-148", "UCP-E-KEY", path(1, wrong))
    yield bad("same-path", "Two files of one path", "UCP-D-148", "UCP-E-KEY", path(1, "ckpt.dmtcp"))
    yield bad(
        "folded-path", "Paths that differ in case alone", "UCP-D-148", "UCP-E-KEY", path(1, "CKPT.dmtcp")
    )
    yield bad(
        "below-a-file",
        "A file in the place of a directory",
        "UCP-D-149",
        "UCP-E-KEY",
        path(1, "ckpt.dmtcp/x"),
    )
    yield bad("above-a-file", "A directory in the place of a file", "UCP-D-149", "UCP-E-KEY",
              path(0, "bin/x/y"), path(1, "bin/X"))  # fmt: skip
    yield bad("in-packs", "A file among the packs", "UCP-D-014", "UCP-E-KEY",
              image("files", 1, "object", "key", to="packs/a1-image-2"), also=True)  # fmt: skip
    yield bad("key-of-a-blob", "A file that is a blob as well", "UCP-D-012", "UCP-E-KEY",
              image("files", 1, "object", "key", to="blobs/a1-0"), also=True)  # fmt: skip
    yield bad("key-twice", "Two files that are one object", "UCP-D-012", "UCP-E-KEY",
              image("files", 1, "object", "key", to="blobs/a1-image-1"), also=True)  # fmt: skip
    where = "blobs/a1-image-1"
    yield bad("other-bytes", "A flipped bit in a file", "UCP-D-021", "UCP-E-DIGEST", changed(where, flipped), at=where)  # fmt: skip
    yield bad("shorter", "A file that is cut", "UCP-D-021", "UCP-E-LENGTH", changed(where, lambda data: data[:-1]),
              at=where)  # fmt: skip
    yield bad("gone", "A file that is not there", "UCP-D-021", "UCP-E-MISSING",
              after(lambda files: files.pop(where)), at=where)  # fmt: skip
    for name, value in (("portable", True), ("required", 1), ("rank", -1), ("files", []), ("host", {"a": 1}),
                        ("media_type", None), ("producer", "dmtcp"), ("strange", 0)):  # fmt: skip
        yield bad(
            f"form-{name.replace('_', '-')}",
            f"An image of which {name} is {value!r}",
            "UCP-R-014",
            "UCP-E-SCHEMA",
            image(name, to=value),
        )
    for name, value in (("executable", False), ("mode", 493), ("path", 1)):
        yield bad(f"form-file-{name}", f"A file of which {name} is {value!r}", "UCP-R-014", "UCP-E-SCHEMA",
                  image("files", 0, name, to=value))  # fmt: skip
    yield bad("form-list", "Images in a list", "UCP-R-014", "UCP-E-SCHEMA", put("state", "images", to=[]),
              at=f"{STATE}#/images")  # fmt: skip


def flipped(data: bytes) -> bytes:
    """Flip a bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def changed(key: str, change: Callable[[bytes], bytes]) -> Callable[[Draft], object]:
    """Change the bytes of an object."""
    return after(lambda files: files.update({key: change(files[key])}))
