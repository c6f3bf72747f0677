"""Static mode: every vector against one driver."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ucp_conformance.connection import Claims, Connection
from ucp_conformance.judge import judge
from ucp_conformance.resources import vectors_folder
from ucp_conformance.results import Result

__all__ = ["GIVE_UP_AFTER", "load_cases", "run_static", "vectors_digest"]

GIVE_UP_AFTER = 6
"""Failures of the connection in a row, after which a driver is left alone."""


@cache
def load_cases() -> tuple[tuple[Path, dict[str, Any]], ...]:
    """Every case with its folder, in order of its path."""
    root = vectors_folder()
    return tuple((path.parent, json.loads(path.read_bytes())) for path in sorted(root.rglob("case.json")))


def vectors_digest() -> str:
    """One digest of all vectors, so that reports can be compared."""
    root = vectors_folder()
    whole = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            whole.update(path.relative_to(root).as_posix().encode() + b"\0")
            whole.update(hashlib.sha256(path.read_bytes()).digest())
    return "sha256:" + whole.hexdigest()


def unclaimed(claims: Claims, case: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """What the driver does not claim and the check takes; the empty string where it claims everything."""
    document = claims.document
    if check["role"] not in document["roles"]:
        return f"role {check['role']}"
    for profile in check.get("profiles", ()):
        if profile not in document["profiles"]:
            return f"profile {profile}"
    for feature in case["features"]:
        if feature not in document["compressors"] or feature not in document["read_features"]:
            return f"feature {feature}"
        writes = document.get("writes_compressors", document["compressors"])
        if check["role"] == "rewriter" and feature not in writes:
            return f"writing {feature}"
    return ""


def run_static(connection: Connection, tell: Callable[[Result], None], *, only: str = "") -> Iterator[Result]:
    """One result per check of every case whose id contains ``only``."""
    claims = connection.hello()
    for folder, case in load_cases():
        if only not in case["id"]:
            continue
        for check in case["checks"]:
            base = {
                "id": f"{case['id']}:{check['name']}",
                "driver": connection.label,
                "role": check["role"],
                "level": check["level"],
                "requirements": case["requirements"],
                "features": case["features"],
                "profiles": check.get("profiles", ()),
            }
            missing = unclaimed(claims, case, check)
            if missing:
                result = Result(**base, outcome="unclaimed", detail=missing)
            elif connection.failures_in_a_row >= GIVE_UP_AFTER:
                result = Result(**base, outcome="protocol", detail="given up after failures in a row")
            else:
                (outcome, detail), ms = judge(connection, case, check, folder)
                log = connection.stderr() if outcome in ("crash", "timeout", "protocol") else ""
                result = Result(**base, outcome=outcome, detail=detail, ms=ms, stderr=log)
            tell(result)
            yield result
