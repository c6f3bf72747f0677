"""One static case in words: what is in it, what it asks, what it expects and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from ucp_conformance.resources import specification
from ucp_conformance.vectors import Vector, all_vectors

__all__ = ["UnknownCaseError", "about", "explained", "sentences"]


class UnknownCaseError(Exception):
    """There is no case of this name; says which ones there are."""


def sentences() -> dict[str, str]:
    """Map each requirement to its sentence in the specification."""
    return dict(re.findall(r"^\*\*\[(UCP-[A-Z]-[0-9]+)\]\*\* (.*)$", specification(), re.MULTILINE))


def explained(name: str) -> str:
    """Return the explanation of the case ``name``; of a check of it, ``CASE:CHECK``, that of its case.

    Raises:
        UnknownCaseError: with the names that are near.
    """
    wanted = name.partition(":")[0].strip("/")
    cases = {vector.id: vector for vector in all_vectors()}
    if wanted not in cases:
        inside = [case for case in cases if wanted in case]
        near = inside or get_close_matches(wanted, cases, n=5)
        hint = f"; did you mean {', '.join(near[:5])}?" if near else ""
        raise UnknownCaseError(f"there is no case {wanted}{hint}")
    return "\n".join(_lines(cases[wanted], cases)) + "\n"


def about(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was asked in a check that failed, what was changed, expected and got, and how to replay it.

    Args:
        result: one result of a report.
    """
    name, _, check = result["id"].partition(":")
    case = next((vector.case for vector in all_vectors() if vector.id == name), None)
    if case is not None:
        yield f"case: {case['title']}"
        if "mutates" in case:
            yield f"changed in {case['mutates']}: {case['mutation']}"
        asked = next((one for one in case["checks"] if one["name"] == check), None)
        if asked is not None:
            yield f"expected: {expected(asked['expect'])}"
    yield f"got: {result['detail']}"
    if case is not None:
        yield f'replay: ucp-conformance run --only {name} --driver "{result["driver"]}=COMMAND"'
    elif "case" in result:
        yield f'replay: ucp-conformance replay FILE --driver "{result["driver"]}=COMMAND", FILE being the smallest case'


def _lines(vector: Vector, cases: Mapping[str, Vector]) -> Iterator[str]:
    case = vector.case
    parent = cases[case["mutates"]].checkpoint if "mutates" in case else None
    yield f"{case['id']}: {case['title']}"
    if "mutates" in case:
        yield f"Made from {case['mutates']} by one change: {case['mutation']}"
    for action in case.get("setup", []):
        yield f"Laid out with: {_json(action)}"
    if case["features"]:
        yield f"Asked of those who claim: {', '.join(case['features'])}"
    yield ""
    yield "What it holds:"
    known = sentences()
    for requirement in case["requirements"]:
        yield f"  {requirement}  {known.get(requirement, 'is no requirement any more')}"
    if vector.checkpoint:
        yield ""
        yield "Objects of the checkpoint, and their bytes:"
        for key, data in sorted(vector.checkpoint.items()):
            yield f"  {len(data):>8}  {key}{_change(data, key, parent)}"
    for key in sorted((parent or {}).keys() - vector.checkpoint.keys()):
        yield f"  {'missing':>8}  {key}"
    if vector.expected:
        yield ""
        yield "What is given or expected, in files:"
        for key, data in sorted(vector.expected.items()):
            yield f"  {len(data):>8}  {key}"
    for check in case["checks"]:
        yield ""
        yield f"Check {check['name']}: {check['op']}, as a {check['role']} of level {check['level']}"
        if check.get("profiles"):
            yield f"  its layouts take: {', '.join(check['profiles'])}"
        for one in check.get("before", []):
            did = f"{one['put']} is put there" if "put" in one else f"{one['op']} {_json(one['params'])}"
            yield f"  before it: {did}"
        if check["params"]:
            yield f"  asked: {_json(check['params'])}"
        yield f"  expected: {expected(check['expect'])}"
        if "may_refuse" in check:
            yield f"  or a refusal with {' or '.join(check['may_refuse'])}"
    yield ""
    yield f"See its files: ucp-conformance unpack FOLDER --only {case['id']}"
    yield f'Run it: ucp-conformance run --only {case["id"]} --driver "NAME=COMMAND"'


def _change(data: bytes, key: str, parent: Mapping[str, bytes] | None) -> str:
    if parent is None or parent.get(key) == data:
        return ""
    return "  changed" if key in parent else "  new"


def expected(expect: Mapping[str, Any]) -> str:
    """Return what a check expects, in words."""
    if "error" in expect:
        return f"a refusal with {' or '.join(expect['error']['codes'])}{_at(expect['error'])}"
    if "problems" in expect:
        problems = expect["problems"]
        if not problems["codes"]:
            return "no problem" if not problems["also"] else "no problem that this case is about"
        words = (" and " if problems.get("every") else " or ").join(problems["codes"])
        words += _at(problems) + ("" if problems["also"] else ", and no other error")
        return words + (f", but not {' or '.join(problems['never'])}" if problems.get("never") else "")
    if "written" in expect or "rewritten" in expect:
        return "a good checkpoint that holds what was given"
    if "epoch" in expect or "batch" in expect:
        return f"what was asked for, written as the text says: {_json(expect)}"
    return _json(expect)


def _at(expect: Mapping[str, Any]) -> str:
    return f" at {' or '.join(expect['at'])}" if expect.get("at") else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
