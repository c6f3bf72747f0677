"""Weight versions (SPEC section 15.3)."""

from __future__ import annotations

from typing import Any

from ucp_conformance.oracle.documents import Collected
from ucp_conformance.oracle.problem import pointer

__all__ = ["check", "needed"]


def needed(state: dict[str, Any]) -> set[str]:
    """Return the features that the pipeline of a state document needs."""
    stages = state.get("pipeline", {"stages": []})["stages"]
    return {"weight-versions" for stage in stages if stage["in_flight"]}


def check(state: dict[str, Any], listed: list[dict[str, Any]], reference: Any, found: Collected) -> None:
    """Look for what breaks UCP-D-143 to UCP-D-147."""
    if "pipeline" not in state:
        return
    pipeline, key = state["pipeline"], reference["key"]
    atoms = {atom["name"]: atom["slots"] for atom in listed}
    names = [name for stage in pipeline["stages"] for name in stage["atoms"]]
    if len(set(names)) < len(names):
        found.add("UCP-E-NAME", pointer(key, "pipeline", "stages"), "an atom is in two stages")
    for number, stage in enumerate(pipeline["stages"]):
        at = pointer(key, "pipeline", "stages", number)
        minibatches = [entry["minibatch"] for entry in stage["in_flight"]]
        if minibatches != sorted(set(minibatches)):
            found.add("UCP-E-NAME", at, "minibatches")
        versions = {entry["version"] for entry in stage["in_flight"]}
        if max(versions, default=0) > stage["updates"]:
            found.add("UCP-E-REFERENCE", at, "a version that is still to come")
        for name in stage["atoms"]:
            slots = atoms.get(name, {})
            if "value" not in slots:
                found.add("UCP-E-REFERENCE", at, f"{name} has no value")
                continue
            like = [slots["value"]["dtype"], slots["value"]["shape"]]
            for version in versions - {stage["updates"]}:
                slot = slots.get(f"version-{version}", {"dtype": "", "shape": []})
                if [slot["dtype"], slot["shape"]] != like:
                    found.add("UCP-E-REFERENCE", at, f"{name} lacks version {version}")
