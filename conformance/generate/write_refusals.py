"""What a writer is given that is not whole, and where it writes; what a rewriter carries over, and refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from generate.cases import Case, bad_case, checks_of_good, refusal
from generate.layout_cases import mesh, shard
from generate.mutations import PACK, flipped, longer, put, without
from generate.parents import PARENTS, floats
from generate.value_steps import partial
from generate.writes import slot, write_check
from ucp_conformance.drafting import Draft

__all__ = ["write_refusal_cases"]

STORAGES = ("plain", "packed")


def write_refusal_cases() -> Iterator[Case]:
    """Yield all cases of this module."""
    yield from _given()
    yield from _places()
    yield from _annotations()
    yield from _damaged()


def _spread(shape: list[int], steps: list[Any], *ins: tuple[list[int], str], dtype: str = "float32") -> Any:
    """Return a slot that comes as local tensors on two axes."""
    given = [{"coordinate": coordinate, "in": file} for coordinate, file in ins]
    return {"dtype": dtype, "shape": shape, "mesh": mesh(a=2, b=2), "steps": steps, "ins": given}


def _given() -> Iterator[Case]:
    halves, copies = [shard("a", 0)], [partial("a")]
    split = [partial("a"), shard("b", 0)]
    first = ([0, 0], "half.bin")
    refused: dict[str, tuple[str, str, Any, str]] = {
        "hole": ("UCP-E-COVER", "UCP-W-024", _spread([8], halves, first), "reshard"),
        "hole-in-the-middle": ("UCP-E-COVER", "UCP-W-024", _spread([12], [shard("a", 0, [3, 9])], ([1, 0], "nine.bin")), "reshard"),
        "hole-everywhere": ("UCP-E-COVER", "UCP-W-024", _spread([8], halves), "reshard"),
        "contribution-missing": ("UCP-E-COVER", "UCP-W-024", _spread([8], copies, ([0, 0], "whole.bin")), "reshard"),
        "contribution-hole": ("UCP-E-COVER", "UCP-W-024", _spread([8], split, first, ([0, 1], "half.bin"), ([1, 1], "half.bin")), "reshard"),
        "short": ("UCP-E-MISMATCH", "UCP-W-025", slot("float32", [8], "half.bin"), "dense"),
        "long": ("UCP-E-MISMATCH", "UCP-W-025", slot("float32", [8], "nine.bin"), "dense"),
        "cut": ("UCP-E-MISMATCH", "UCP-W-025", slot("float32", [8], "cut.bin"), "dense"),
        "nothing": ("UCP-E-MISMATCH", "UCP-W-025", slot("float32", [8], "nothing.bin"), "dense"),
        "short-local": ("UCP-E-MISMATCH", "UCP-W-025", _spread([8], halves, first, ([1, 0], "three.bin")), "reshard"),
        "long-local": ("UCP-E-MISMATCH", "UCP-W-025", _spread([8], halves, first, ([1, 0], "nine.bin")), "reshard"),
        "bool-two": ("UCP-E-PADDING", "UCP-W-026", slot("bool", [4], "bools.bin"), "dense"),
        "bool-two-of-many": ("UCP-E-PADDING", "UCP-W-026", slot("bool", [4096], "many.bin"), "dense"),
        "bool-two-local": ("UCP-E-PADDING", "UCP-W-026", _spread([4], [], ([0, 0], "bools.bin"), dtype="bool"), "reshard"),
    }  # fmt: skip
    files = {
        "half.bin": floats(4), "whole.bin": floats(8), "nine.bin": floats(9), "three.bin": floats(3), "cut.bin": floats(8)[:-1],
        "nothing.bin": b"", "bools.bin": b"\0\1\2\1", "many.bin": bytes(4000) + b"\x02" + bytes(95),
    }  # fmt: skip
    for name, (code, requirement, given, level) in refused.items():
        checks = []
        for storage in STORAGES:
            check = write_check(
                [{"name": "w", "slots": {"value": given}}], None, level, refuse=code, storage=storage
            )
            checks.append(check | {"name": f"write-{storage}"})
        used = {item["in"] for item in (given, *given.get("ins", ())) if "in" in item}
        yield Case(
            f"bad/write/{name}",
            f"A writer is given what is not whole: {name}".replace("-", " "),
            (requirement,),
            checks,
            None,
            {file: data for file, data in files.items() if file in used},
            mutates="good/write/dense-packed",
            mutation=name,
        )


def _places() -> Iterator[Case]:
    """Yield an empty directory, and one in which an attempt died."""
    atoms = [{"name": "alpha", "slots": {"value": slot("float32", [5, 3], "w.bin")}}]
    data = {"w.bin": bytes(32) + floats(7)}
    for storage in STORAGES:
        check = write_check(atoms, {"alpha/value": "w.bin"}, "dense", storage=storage)
        yield Case(
            f"good/write/published-{storage}",
            "The root document appears whole",
            ("UCP-W-003", "UCP-W-012", "UCP-W-014"),
            [check | {"watched": True}],
            None,
            data,
        )
        files = PARENTS[storage]().files()
        del files["ucp.json"]
        yield Case(
            f"good/write/debris-{storage}",
            "What an attempt left is cleared, or refused",
            ("UCP-W-006", "UCP-W-011", "UCP-W-007"),
            [check | {"onto": True, "may_refuse": ["UCP-E-EXISTS"]}],
            files,
            data,
        )


def _annotations() -> Iterator[Case]:
    for storage in STORAGES:
        draft = PARENTS[storage]()
        # Integral numbers beyond 2^53-1 take an exponent (UCP-D-003).
        draft.root["annotations"] = {"org.example": {"large": 1e20, "small": -1e19}}
        first = draft.parts[0].index["atoms"][0]
        first["annotations"] = {"org.example": {"note": "of an atom", "\uffff": None}}
        first["slots"]["value"]["annotations"] = {"org.example": ["of a slot", 1e19]}
        if draft.state is not None:
            draft.state["annotations"] = {"org.example": "of the state document"}
        checks, expected, _ = checks_of_good(draft, reads=False)
        yield Case(
            f"good/rewrite/annotations-{storage}",
            "Annotations of everything that has some",
            ("UCP-W-028", "UCP-R-031", "UCP-D-003"),
            checks,
            draft.files(),
            expected,
        )


def _damaged() -> Iterator[Case]:
    wrong = "crc32c-tree:" + "5" * 64
    content = put("index0", "atoms", 0, "slots", "value", "content", to=wrong)
    zeros = put("index1", "atoms", 0, "slots", "master", "content", to=wrong)
    faults: dict[str, tuple[Callable[[Draft], object], str, str, str]] = {
        "content": (content, "UCP-E-CONTENT", "UCP-W-029", "packed"),
        "content-plain": (content, "UCP-E-CONTENT", "UCP-W-029", "plain"),
        "content-of-zeros": (zeros, "UCP-E-CONTENT", "UCP-W-029", "packed"),
        "blob": (flipped("blobs/a1-0", 0), "UCP-E-DIGEST", "UCP-W-030", "packed"),
        "blob-longer": (longer("blobs/a1-0"), "UCP-E-LENGTH", "UCP-W-030", "packed"),
        "blob-missing": (without("blobs/a1-0"), "UCP-E-MISSING", "UCP-W-030", "packed"),
        "chunk": (flipped(PACK, 192), "UCP-E-CHECKSUM", "UCP-R-029", "packed"),
    }
    for name, (mutate, code, requirement, parent) in faults.items():
        made = bad_case(
            f"rewrite/{name}", f"A damaged source: {name}", (requirement,), code, PARENTS[parent](), mutate,
            parent=parent, ops=("no-validate",),
        )  # fmt: skip
        made.checks += [
            refusal(
                "rewrite",
                [code],
                params={"storage": storage},
                role="rewriter",
                level="full",
                name=f"rewrite-{storage}",
            )
            for storage in STORAGES
        ]
        yield made
