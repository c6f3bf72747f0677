"""What of the problems of a checkpoint each level of validation finds (SPEC 18)."""

from __future__ import annotations

from collections.abc import Sequence

from ucp_conformance.oracle.documents import ROOT
from ucp_conformance.oracle.problem import Problem
from ucp_conformance.oracle.values import NO_VALUE

__all__ = ["at_level"]

_STRUCTURE = frozenset(
    f"UCP-E-{name}"
    for name in ("NOT-FOUND", "LINK", "STORE", "LIMIT", "JSON", "FORMAT", "VERSION", "SCHEMA", "MISSING")
)
_INTEGRITY = frozenset(f"UCP-E-{name}" for name in ("CHECKSUM", "CODEC", "PADDING", "CONTENT"))


def at_level(problems: Sequence[Problem], level: str) -> list[Problem]:
    """Return what of the problems of a checkpoint with one fault a validator finds at a level (section 18)."""

    def is_seen(problem: Problem) -> bool:
        key = problem.at.partition("#")[0]
        documents_only = key == ROOT or key.startswith("index/")
        if level == "structure" and problem.code == "UCP-E-VALUE":
            return problem.why == NO_VALUE
        if level == "structure":
            return problem.code in _STRUCTURE and documents_only and not key.endswith(".bin")
        stored = not documents_only and not key.endswith("/zarr.json")
        return problem.code not in _INTEGRITY and not (
            stored and problem.code in ("UCP-E-MISSING", "UCP-E-LENGTH", "UCP-E-DIGEST", "UCP-E-LINK")
        )

    return [problem for problem in problems if level == "integrity" or is_seen(problem)]
