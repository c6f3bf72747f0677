"""Static mode: every vector against one driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ucp_conformance.connection import Claims, Connection
from ucp_conformance.judge import judge
from ucp_conformance.log_requests import LOG_WRITES, judge_log_write
from ucp_conformance.results import COMPRESSORS, Result
from ucp_conformance.vectors import all_vectors

__all__ = ["GIVE_UP_AFTER", "run_static"]

GIVE_UP_AFTER = 6
"""Failures of the connection in a row, after which a driver is left alone."""


def unclaimed(claims: Claims, case: Mapping[str, Any], check: Mapping[str, Any]) -> str:
    """Return what the driver does not claim and the check takes; the empty string where it claims everything."""
    document = claims.document
    if check["role"] not in document["roles"]:
        return f"role {check['role']}"
    for profile in check.get("profiles", ()):
        if profile not in document["profiles"]:
            return f"profile {profile}"
    if check["op"] in LOG_WRITES:
        return "" if claims.writes_feature("update-log") else "writing update-log"
    for feature in case["features"]:
        if feature not in document["read_features"]:
            return f"feature {feature}"
        if feature not in COMPRESSORS:
            continue
        if feature not in document["compressors"]:
            return f"feature {feature}"
        writes = document.get("writes_compressors", document["compressors"])
        if check["role"] == "rewriter" and feature not in writes:
            return f"writing {feature}"
    return ""


def run_static(connection: Connection, tell: Callable[[Result], None], *, only: str = "") -> Iterator[Result]:
    """Yield one result per check of every case whose id contains ``only``."""
    claims = connection.hello()
    for vector in all_vectors():
        case = vector.case
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
                judge_check = judge_log_write if check["op"] in LOG_WRITES else judge
                (outcome, detail), ms = judge_check(connection, vector, check)
                log = connection.stderr() if outcome in ("crash", "timeout", "protocol") else ""
                result = Result(**base, outcome=outcome, detail=detail, ms=ms, stderr=log)
            tell(result)
            yield result
