"""A generated case becomes a static one: a checkpoint, what its reader is asked, and what is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft
from ucp_conformance.exchange import level_of_plan, local_of, plan_data, refusal_of
from ucp_conformance.oracle.layouts import lower
from ucp_conformance.profiles import with_profiles
from ucp_conformance.resources import protocol_validator
from ucp_conformance.vectors import vector_of, write_vectors

__all__ = ["promote"]


def promote(plan: Mapping[str, Any], name: str, vectors: Path) -> Path:
    """Write the case below the folder of vectors; returns its file, which must not exist."""
    data = plan_data(plan)
    source = plan["source"]
    slot = SlotDraft(plan["dtype"], tuple(plan["shape"]), data, compressor=plan["compressor"])
    root: dict[str, Any] = {}
    if source is not None:
        slot = replace(slot, layout=0, place=source.get("place"))
        root = {"meshes": [source["mesh"]], "layouts": [{"mesh": 0, "steps": source["steps"]}]}
    draft = Draft(
        [AtomDraft("w", {"value": slot})],
        storage=plan["storage"],
        chunk_bytes=plan["chunk_bytes"],
        root=root,
    )
    expected = {"whole.bin": data}
    level = level_of_plan(plan)
    whole = {"dtype": plan["dtype"], "shape": plan["shape"]}
    checks: list[dict[str, Any]] = [
        {
            "name": "read", "role": "reader", "level": level, "op": "read",
            "params": {"atom": "w", "slot": "value"}, "expect": {"tensor": whole, "file": "whole.bin"},
        }
    ]  # fmt: skip
    under: dict[str, Any] = {
        "name": "read-layout", "role": "reader", "level": level, "op": "read",
        "params": {"atom": "w", "slot": "value", **(plan["target"] or {})},
    }  # fmt: skip
    if (code := refusal_of(plan)) is not None:
        checks.append({**under, "expect": {"error": {"codes": [code]}}})
    elif plan["target"] is not None:
        locals_: list[dict[str, Any]] = []
        for number, (place, local) in enumerate(lower(**plan["target"], shape=plan["shape"]).items()):
            entry: dict[str, Any] = {"coordinate": list(place), "shape": None, "file": None}
            if local is not None:
                entry |= {"shape": list(local.shape), "file": f"local-{number}.bin"}
                expected[entry["file"]] = local_of(plan, "target", data, place, local)
            locals_.append(entry)
        checks.append({**under, "expect": {"dtype": plan["dtype"], "locals": locals_}})
    checks.append(_write_check(plan, level, expected))
    case = {
        "id": f"good/promoted/{name}",
        "title": f"Promoted: {name}"[:75],
        "requirements": ["UCP-R-021"] if plan["target"] is not None else ["UCP-D-092"],
        "features": [],
        "checks": [with_profiles(check) for check in checks],
    }
    protocol_validator("case").validate(case)
    path = vectors / f"{case['id']}.json"
    if path.exists():
        raise FileExistsError(path)
    write_vectors([vector_of(case, draft.files(), expected)], vectors)
    return path


def _write_check(plan: Mapping[str, Any], level: str, expected: dict[str, bytes]) -> dict[str, Any]:
    """Return the same tensor, to be written; the local tensors of the source layout go to ``expected``."""
    slot: dict[str, Any] = {"dtype": plan["dtype"], "shape": plan["shape"]}
    if plan["compressor"] is not None:
        slot["compressor"] = plan["compressor"]
    if plan["source"] is None:
        slot["in"] = "whole.bin"
    else:
        data = expected["whole.bin"]
        slot |= {**plan["source"], "ins": []}
        for number, (place, local) in enumerate(lower(**plan["source"], shape=plan["shape"]).items()):
            if local is not None:
                file = f"source-{number}.bin"
                expected[file] = local_of(plan, "source", data, place, local)
                slot["ins"].append({"coordinate": list(place), "in": file})
    params = {
        "storage": plan["storage"],
        "chunk_bytes": plan["chunk_bytes"],
        "atoms": [{"name": "w", "slots": {"value": slot}}],
    }
    return {
        "name": "write", "role": "writer", "level": level, "op": "write", "params": params,
        "expect": {"written": {"w/value": "whole.bin"}},
    }  # fmt: skip
