"""Vectors of lowering in one file, for tests without a driver, and the page that shows them (SPEC sections 12, 13)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from generate.cases import Case
from ucp_conformance.oracle.layouts import view_of
from ucp_conformance.profiles import PROFILES, profiles_of

__all__ = ["document", "page", "write"]

Json = dict[str, Any]

MOST_SHOWN: Final = 16
"""Pieces of a vector that the page shows; those with more are in the file alone."""

INTRODUCTION: Final = """# Test vectors of lowering

What a layout, a shape and a coordinate come to by SPEC sections 12 and 13, so that an implementation of lowering has something to be compared with before it has a driver.
This page is for eyes; `conformance/lowering.json` has all of it for programs, {good} layouts that lower and {bad} that are refused:

* `good`: objects with the `name` of the case below `conformance/vectors/good/layouts`, its `profiles` (SPEC section 6), `mesh`, `steps`, `shape` and, where there is one, `place`; the `view` that pieces are boxes of; and `locals`, one for each coordinate in row-major order: `coordinate`, `shape`, which is null where the coordinate holds nothing, and `pieces`, the canonical list.
* `bad`: objects with the `case`, `profiles`, `mesh`, `steps`, `shape`, maybe `place`, the `requirements` that they break, and `codes`, of which the refusal has one.

`python -m generate` in `conformance/` makes both anew, and tests compare them with the vectors, with the oracle of the suite, and with both implementations of lowering in this repository.

A piece is written `[offset]+[shape] at local by [strides]`.
The vectors come by the profiles that they take; of those with many pieces the page tells the number.

<!-- every block: run by tests/conformance/test_lowering.py -->
"""


def document(cases: Iterable[Case]) -> dict[str, list[Json]]:
    """Return every case with a ``lower``: those that lower, and those that are refused."""
    good: list[Json] = []
    bad: list[Json] = []
    for case in cases:
        for check in case.checks:
            if check["op"] != "lower":
                continue
            params = check["params"]
            asked = {"profiles": profiles_of(params), **params}
            if "error" in check["expect"]:
                codes = check["expect"]["error"]["codes"]
                bad.append(
                    {"case": case.id, **asked, "requirements": sorted(set(case.requirements)), "codes": codes}
                )
                continue
            found = json.loads(case.expected[check["expect"]["file"]])
            name = case.id.removeprefix("good/layouts/")
            view = list(view_of(params["steps"], params["shape"]))
            good.append({"name": name, **asked, "view": view, "locals": found["locals"]})
    return {"good": good, "bad": bad}


def page(vectors: Mapping[str, Sequence[Json]]) -> str:
    """Return the page of the vectors that lower."""
    lines = [INTRODUCTION.format(good=len(vectors["good"]), bad=len(vectors["bad"]))]
    groups: dict[tuple[str, ...], list[Json]] = {}
    for vector in vectors["good"]:
        groups.setdefault(tuple(vector["profiles"]), []).append(vector)
    for profiles in sorted(groups, key=lambda taken: [list(PROFILES).index(name) for name in taken]):
        lines.append(f"## {' and '.join(profiles).capitalize()}\n")
        for vector in groups[profiles]:
            lines.extend(_shown(vector))
    return "\n".join(lines)


def _shown(vector: Json) -> Iterator[str]:
    count = sum(len(local["pieces"]) for local in vector["locals"])
    yield f"### {vector['name']}\n"
    yield "```text"
    yield f"shape {vector['shape']}" + (
        f" view {vector['view']}" if vector["view"] != vector["shape"] else ""
    )
    yield f"mesh {json.dumps(vector['mesh'])}"
    yield from (f"step {json.dumps(step)}" for step in vector["steps"])
    if "place" in vector:
        yield f"place {json.dumps(vector['place'])}"
    if count > MOST_SHOWN:
        yield f"{count} pieces"
    else:
        for local in vector["locals"]:
            yield from _of_coordinate(local)
    yield "```\n"


def _of_coordinate(local: Json) -> Iterator[str]:
    held = "nothing" if local["shape"] is None else f"local {local['shape']}"
    yield f"at {local['coordinate']} {held}"
    for piece in local["pieces"]:
        yield f"  {piece['offset']}+{piece['shape']} at {piece['local']} by {piece['strides']}"


def write(cases: Iterable[Case], folder: Path) -> None:
    """Write the file and the page into ``folder``."""
    vectors = document(cases)
    text = ",\n".join(
        f'"{kind}": [\n' + ",\n".join(json.dumps(vector) for vector in found) + "\n]"
        for kind, found in vectors.items()
    )
    (folder / "lowering.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    (folder / "LOWERING.md").write_text(page(vectors), encoding="utf-8")
