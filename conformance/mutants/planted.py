"""Drivers with one planted defect each, of those that a driver may well have: what the vectors are there to find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oracle_driver import OracleDriver

from ucp_conformance.oracle.examine import Examination
from ucp_conformance.oracle.problem import Problem, RefusalError

__all__ = ["PLANTED"]


class TellsTwice(OracleDriver):
    """Reports beside a problem what follows from it."""

    follows: Mapping[str, str] = {
        "UCP-E-LENGTH": "UCP-E-DIGEST",
        "UCP-E-CHECKSUM": "UCP-E-CODEC",
        "UCP-E-CODEC": "UCP-E-CONTENT",
        "UCP-E-TABLE": "UCP-E-SEGMENT",
    }

    def examined(self, path: str) -> Examination:
        seen = super().examined(path)
        more = [Problem(self.follows[p.code], p.at) for p in seen.problems if p.code in self.follows]
        return Examination([*seen.problems, *more], seen.logical)


class RefusesNoncharacters(OracleDriver):
    """Parses I-JSON as RFC 7493 has it."""

    def inspect(self, params: Mapping[str, Any]) -> dict[str, Any]:
        found = super().inspect(params)
        if any("\uffff" in atom["name"] for atom in found["atoms"]):
            raise RefusalError("UCP-E-JSON", "ucp.json")
        return found


PLANTED: dict[str, type[OracleDriver]] = {
    "tells-twice": TellsTwice,
    "refuses-noncharacters": RefusesNoncharacters,
}
