"""Pipelines in flight and drained: weight versions (SPEC section 15.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from generate.cases import Case, checks_of_good
from generate.mutations import STATE, case, put, several
from generate.parents import PARENTS
from ucp_conformance.drafting import Draft

__all__ = ["pipeline_cases"]

FEATURE = ("weight-versions",)
Json = dict[str, Any]


def pipeline_cases() -> Iterator[Case]:
    """Yield all of them."""
    yield from _read()
    yield from _good()
    yield from _bad()


def only(stage: int, axis: str = "pp") -> Json:
    """The step that keeps a stage."""
    return {"kind": "only", "axis": axis, "coordinates": [stage]}


def _read() -> Iterator[Case]:
    """Read under layouts that keep stages, and under others."""
    draft = PARENTS["pipeline"]()
    checks, expected, _ = checks_of_good(draft)
    b = draft.parts[0].index["atoms"][1]
    assert b["name"] == "b"
    whole = next(check for check in checks if check["params"] == {"atom": "b", "slot": "version-9"})
    file = whole["expect"]["file"]

    def under(name: str, axes: list[Json], *steps: Json, atom: str = "b", slot: str = "version-9") -> Json:
        params = {"atom": atom, "slot": slot, "mesh": {"axes": axes}, "steps": list(steps)}
        return {"name": name, "role": "reader", "level": "reshard", "op": "read", "params": params}

    def refused(check: Json) -> Json:
        return {**check, "expect": {"error": {"codes": ["UCP-E-MISMATCH"]}}}

    pp = {"name": "pp", "size": 3}
    kept = under("wider", [pp, {"name": "dp", "size": 4}], only(1))
    local = {"coordinate": [1, 3], "shape": [4], "file": file}
    nothing = {"coordinate": [0, 0], "shape": None, "file": None}
    checks.append({**kept, "expect": {"dtype": "float32", "locals": [local, nothing]}})
    checks.append(refused(under("replicated", [pp])))
    checks.append(refused(under("elsewhere", [pp], only(0))))
    checks.append(refused(under("two-stages", [pp], {**only(1), "coordinates": [1, 2]})))
    checks.append(refused(under("fewer-stages", [{"name": "pp", "size": 2}], only(1))))
    checks.append(refused(under("more-stages", [{"name": "pp", "size": 4}], only(1))))
    checks.append(refused(under("other-axis", [pp, {"name": "tp", "size": 3}], only(1, "tp"))))
    checks.append(refused(under("newest", [pp], slot="value")))
    checks.append(refused(under("moments", [pp], slot="exp_avg")))
    checks.append(refused(under("drained-stage", [pp], atom="c", slot="value")))
    shared = next(check for check in checks if check["params"] == {"atom": "shared", "slot": "value"})
    free = under("of-no-stage", [{"name": "dp", "size": 1}], atom="shared", slot="value")
    local = {"coordinate": [0], "shape": [2], "file": shared["expect"]["file"]}
    checks.append({**free, "expect": {"dtype": "float32", "locals": [local]}})
    yield Case(
        "good/pipelines/stages", "A pipeline in flight goes on with its own stages alone",
        ("UCP-R-034", "UCP-D-143"), checks, draft.files(), expected, features=FEATURE,
    )  # fmt: skip


def _good() -> Iterator[Case]:
    def good(name: str, title: str, *changes: Callable[[Draft], object], flies: bool = True) -> Case:
        draft = PARENTS["pipeline"]()
        several(*changes)(draft)
        checks, expected, _ = checks_of_good(draft)
        requirements = ("UCP-D-009", "UCP-D-144", "UCP-D-145", "UCP-D-146", "UCP-D-147")
        return Case(
            f"good/pipelines/{name}", title, requirements, checks, draft.files(), expected,
            features=FEATURE if flies else (),
        )  # fmt: skip

    drained = [put("state", "pipeline", "stages", stage, "in_flight", to=[]) for stage in range(3)]
    yield good(
        "drained", "Nothing is in flight: no feature is needed, and any layout reads it",
        *drained, put("root", "read_features", to=[]), flies=False,
    )  # fmt: skip
    newest = [{"minibatch": 10, "version": 9}, {"minibatch": 11, "version": 10}]
    yield good(
        "newest", "A minibatch that went through the newest version",
        put("state", "pipeline", "stages", 1, "in_flight", to=newest),
    )  # fmt: skip
    same = [{"minibatch": number, "version": 9} for number in (3, 7, 2**53 - 1)]
    yield good(
        "one-version", "Several minibatches went through one version",
        put("state", "pipeline", "stages", 1, "in_flight", to=same),
    )  # fmt: skip
    yield good(
        "other-steps", "Stages with different numbers of updates, and one of no atoms",
        put("state", "pipeline", "stages", 1, "updates", to=23), put("state", "pipeline", "stages", 2, "atoms", to=[]),
    )  # fmt: skip


def later(draft: Draft) -> None:
    """Have the stashed version be a later one, so that nothing else is wrong with it."""
    slots = draft.parts[0].index["atoms"][1]["slots"]
    slots["version-11"] = slots.pop("version-9")


def _bad() -> Iterator[Case]:
    def bad(
        name: str, title: str, rule: str, code: str, *changes: Callable[[Draft], object], **options: Any
    ) -> Case:
        return case(
            f"pipelines/{name}", title, (rule,), code, several(*changes), parent="pipeline", ops=(),
            features=options.pop("features", FEATURE), **options,
        )  # fmt: skip

    def stage(number: int, *path: str | int, to: Any) -> Callable[[Draft], object]:
        return put("state", "pipeline", "stages", number, *path, to=to)

    def slot(atom: int, name: str, change: Callable[[Json], object]) -> Callable[[Draft], object]:
        return lambda draft: change(draft.parts[0].index["atoms"][atom]["slots"][name])

    features = "ucp.json#/read_features"
    yield bad("undeclared", "In flight, and no feature says so", "UCP-D-009", "UCP-E-FEATURE-SET",
              put("root", "read_features", to=[]), at=features, features=())  # fmt: skip
    yield bad("superfluous", "The feature, and nothing in flight", "UCP-D-009", "UCP-E-FEATURE-SET",
              *(stage(number, "in_flight", to=[]) for number in range(3)), at=features)  # fmt: skip
    yield bad("no-pipeline", "The feature, and no pipeline", "UCP-D-009", "UCP-E-FEATURE-SET",
              lambda draft: (draft.state or {}).pop("pipeline"), at=features)  # fmt: skip
    yield bad("no-atom", "A stage has an atom that is not there", "UCP-D-143", "UCP-E-REFERENCE",
              stage(2, "atoms", to=["d"]))  # fmt: skip
    yield bad(
        "twice", "An atom twice in a stage", "UCP-D-144", "UCP-E-NAME", stage(2, "atoms", to=["c", "c"])
    )
    yield bad("in-two-stages", "An atom in two stages", "UCP-D-144", "UCP-E-NAME", stage(2, "atoms", to=["c", "b"]))  # fmt: skip
    one, two = {"minibatch": 10, "version": 9}, {"minibatch": 11, "version": 9}
    yield bad("equal-minibatches", "A minibatch is in flight twice", "UCP-D-145", "UCP-E-NAME",
              stage(1, "in_flight", to=[one, one]))  # fmt: skip
    yield bad("descending-minibatches", "Minibatches that descend", "UCP-D-145", "UCP-E-NAME",
              stage(1, "in_flight", to=[two, one]))  # fmt: skip
    yield bad("later-version", "A version that is still to come", "UCP-D-146", "UCP-E-REFERENCE",
              stage(1, "in_flight", to=[{"minibatch": 10, "version": 11}]), later)  # fmt: skip
    yield bad("missing-version", "A version that no slot has", "UCP-D-147", "UCP-E-REFERENCE",
              stage(1, "in_flight", to=[{"minibatch": 10, "version": 7}]))  # fmt: skip
    yield bad("missing-in-one", "A version that one of two atoms of a stage lacks", "UCP-D-147", "UCP-E-REFERENCE",
              stage(1, "atoms", to=["b", "shared"]))  # fmt: skip
    yield bad("other-dtype", "A version of another data type", "UCP-D-147", "UCP-E-REFERENCE",
              slot(1, "version-9", lambda found: found.update(dtype="int32")))  # fmt: skip
    for name, value in (
        ("null", None),
        ("list", []),
        ("empty", {}),
        ("no-stages", {"axis": "pp", "stages": []}),
    ):
        yield bad(f"form-{name}", f"A pipeline that is {name}", "UCP-R-014", "UCP-E-SCHEMA",
                  put("state", "pipeline", to=value), at=f"{STATE}#/pipeline")  # fmt: skip
    for name, entry in (
        ("text", {"minibatch": "10", "version": 8}), ("negative", {"minibatch": -1, "version": 8}),
        ("no-version", {"minibatch": 10}), ("more", {"minibatch": 10, "version": 8, "rank": 0}),
    ):  # fmt: skip
        yield bad(f"minibatch-{name}", f"A minibatch in flight: {name}", "UCP-R-014", "UCP-E-SCHEMA",
                  stage(0, "in_flight", to=[entry]))  # fmt: skip
