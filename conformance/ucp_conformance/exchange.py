"""An exchange: one implementation writes, another reads, and the oracle says who is wrong."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ucp_conformance.connection import Connection, Reply
from ucp_conformance.judge import judge_written, listed
from ucp_conformance.oracle.arithmetic import reduced, scaled
from ucp_conformance.oracle.bytes_of import CORE_DTYPES, ITEM_BYTES, unused_bits
from ucp_conformance.oracle.examine import examine
from ucp_conformance.oracle.layouts import Local, local_bytes, lower, pieces, view_of
from ucp_conformance.oracle.strict_json import same
from ucp_conformance.workplace import Workplace

__all__ = ["REQUIREMENTS", "Fault", "exchange", "level_of_plan", "local_of", "plan_data", "refusal_of"]

REQUIREMENTS = (
    "UCP-D-029", "UCP-D-036", "UCP-D-092", "UCP-D-093", "UCP-D-095", "UCP-D-101", "UCP-D-045", "UCP-D-046",
    "UCP-D-051", "UCP-D-079", "UCP-R-004", "UCP-R-029", "UCP-R-021", "UCP-R-018", "UCP-R-020", "UCP-W-027",
)  # fmt: skip
"""What exchanges hold."""


IMAGE = "trainer/0"


@dataclass(frozen=True, slots=True)
class Fault:
    """Who is wrong, in which role, how, and why."""

    blamed: str
    role: str
    outcome: str
    why: str
    stderr: str = ""


def plan_data(plan: Mapping[str, Any]) -> bytes:
    """Return the logical bytes of a plan.

    Raises:
        RefusalError: where its contributions have no reduction, or that has no factor.
    """
    source = plan["source"]
    steps = {} if source is None else {step["kind"]: step for step in source["steps"]}
    if "partial" not in steps:
        return tensor_data(plan)
    data = reduced(list(contributions(plan).values()), plan["dtype"], steps["partial"]["reduce"])
    return scaled(data, plan["dtype"], -steps["scale"]["exponent"]) if "scale" in steps else data


def contributions(plan: Mapping[str, Any]) -> dict[tuple[int, ...], bytes]:
    """Return what the source holds of the whole tensor, by position on the axes of its partial steps, in order."""
    summed = _summed(plan["source"])
    positions = itertools.product(*(range(size) for size in summed.values()))
    return {position: tensor_data(plan, number) for number, position in enumerate(positions)}


def _summed(source: Mapping[str, Any]) -> dict[str, int]:
    """Return the axes of partial steps with their sizes, in the order of the mesh."""
    names = {step["axis"] for step in source["steps"] if step["kind"] == "partial"}
    return {axis["name"]: axis["size"] for axis in source["mesh"]["axes"] if axis["name"] in names}


def refusal_of(plan: Mapping[str, Any]) -> str | None:
    """Return the code with which a reader refuses to read under the target (UCP-R-018, UCP-R-020); None if it reads."""
    source, target = plan["source"], plan["target"]
    if target is None:
        return None
    if any(step["kind"] == "partial" for step in target["steps"]):
        return "UCP-E-LAYOUT"
    own = next((step for step in source["steps"] if step["kind"] == "local"), None) if source else None
    if own is None:
        return None
    if [step["kind"] for step in target["steps"]] != ["local"]:
        return "UCP-E-MISMATCH"
    alike = source["mesh"]["axes"] == target["mesh"]["axes"]
    return None if alike or own["resize"] == "keep" else "UCP-E-MISMATCH"


def tensor_data(plan: Mapping[str, Any], number: int = 0) -> bytes:
    """Return bytes of a tensor of the plan: a counter, so that what is misplaced shows, or bits from a seed.

    Those of other numbers differ.
    """
    item, count = ITEM_BYTES[plan["dtype"]], math.prod(plan["shape"])
    mask = 0xFF & ~unused_bits(plan["dtype"])
    kind, _, seed = plan["data"].partition(":")
    if kind == "zeros":
        return bytes(item * count)
    if kind == "counter":
        # The element's number plus 1 in its first bytes: zero is what is forgotten.
        wide = ((at + 1 + number).to_bytes(8, "little")[:item].ljust(item, b"\0") for at in range(count))
        return bytes(byte & mask for byte in b"".join(wide))
    return bytes(byte & mask for byte in Random(int(seed) + number).randbytes(item * count))  # noqa: S311 - no secret


def local_of(
    plan: Mapping[str, Any], side: str, data: bytes, coordinate: Sequence[int], local: Local
) -> bytes:
    """Return what a coordinate of one side holds, with the factor of the layout, or of its own contribution."""
    item = ITEM_BYTES[plan["dtype"]]
    if side == "source" and (summed := _summed(plan["source"])):
        names = [axis["name"] for axis in plan["source"]["mesh"]["axes"]]
        position = tuple(coordinate[names.index(name)] for name in summed)
        return local_bytes(contributions(plan)[position], item, local)
    raw = local_bytes(data, item, local)
    for step in plan[side]["steps"]:
        raw = scaled(raw, plan["dtype"], step["exponent"]) if step["kind"] == "scale" else raw
    return raw


def level_of_plan(plan: Mapping[str, Any]) -> str:
    """Return the level at which both sides have to master a plan."""
    if plan["dtype"] not in CORE_DTYPES or plan["compressor"] is not None:
        return "full"
    return "reshard" if plan["source"] or plan["target"] else "dense"


def exchange(writer: Connection, reader: Connection, plan: Mapping[str, Any]) -> Fault | None:
    """Run a plan; None if everybody is right."""
    place = Workplace()
    try:
        return _exchange(writer, reader, plan, place)
    finally:
        place.close()


def _failed(connection: Connection, role: str, reply: Reply, what: str) -> Fault | None:
    if reply.kind == "result":
        return None
    # What is not implemented is no failure, and no pass either.
    said = reply.kind in ("crash", "timeout", "unsupported")
    outcome = reply.kind if said else "fail" if reply.is_answer else "protocol"
    log = connection.stderr() if outcome != "fail" else ""
    return Fault(connection.label, role, outcome, f"{what}: {reply.kind} {reply.body}", log)


def _exchange(
    writer: Connection, reader: Connection, plan: Mapping[str, Any], place: Workplace
) -> Fault | None:
    data = plan_data(plan)
    slot: dict[str, Any] = {"dtype": plan["dtype"], "shape": plan["shape"]}
    if plan["compressor"] is not None:
        slot["compressor"] = plan["compressor"]
    if plan["source"] is None:
        slot["in"] = place.put(data)
    else:
        found = lower(**plan["source"], shape=plan["shape"])
        slot |= plan["source"]
        slot["ins"] = [
            {
                "coordinate": list(coordinate),
                "in": place.put(local_of(plan, "source", data, coordinate, local)),
            }
            for coordinate, local in found.items()
            if local is not None
        ]
    path = place.fresh()
    params = {
        "path": str(path),
        "storage": plan["storage"],
        "chunk_bytes": plan["chunk_bytes"],
        "atoms": [{"name": "w", "slots": {"value": slot}}],
    }
    if plan.get("image"):
        params["images"] = {IMAGE: _image(place)}
    if plan.get("base") is not None:
        base = place.fresh()
        whole = {"dtype": plan["dtype"], "shape": plan["shape"], "in": place.put(base_data(plan, data))}
        if plan["compressor"] is not None:
            whole["compressor"] = plan["compressor"]
        atoms = [{"name": "w", "slots": {"value": whole}}]
        fault = _failed(
            writer, "writer", writer.request("write", {**params, "path": str(base), "atoms": atoms}), "write"
        )
        if fault is not None:
            return fault
        params["base"] = str(base)
    reply = writer.request("write", params)
    fault = _failed(writer, "writer", reply, "write")
    if fault is not None:
        return fault
    if plan.get("base") is not None:
        shutil.rmtree(base)  # what was written does without
    outcome, why = judge_written(path, params, {"w/value": data}, reply.body["digest"])
    if outcome != "pass":
        return Fault(writer.label, "writer", outcome, why)
    # The oracle has found what was written right: from here on the reader is to blame.
    return _read(reader, path, plan, data, place) or _rewrite(reader, path, plan, data, place)


def base_data(plan: Mapping[str, Any], data: bytes) -> bytes:
    """Return the bytes of the base of an increment: equal, others, or others in the rows from the middle on."""
    if plan["base"] == "equal":
        return data
    other = tensor_data(plan, 1)
    middle = 0 if plan["base"] == "other" else math.prod(plan["shape"]) // 2 * ITEM_BYTES[plan["dtype"]]
    return data[:middle] + other[middle:]


def _image(place: Workplace) -> dict[str, Any]:
    return {
        "media_type": "application/x-example", "producer": {"name": "example", "version": "1"}, "host": {},
        "portable": False, "required": True, "files": [{"path": "image", "in": place.put(b"memory")}],
    }  # fmt: skip


def _read(
    reader: Connection, path: Path, plan: Mapping[str, Any], data: bytes, place: Workplace
) -> Fault | None:
    def wrong(role: str, why: str) -> Fault:
        return Fault(reader.label, role, "fail", why)

    roles = reader.hello().document["roles"]
    if "validator" in roles:
        reply = reader.request("validate", {"path": str(path), "level": "integrity"})
        fault = _failed(reader, "validator", reply, "validate")
        if fault is not None:
            return fault
        if reply.body["problems"]:
            return wrong("validator", f"expected no problem; reported {json.dumps(reply.body['problems'])}")
    if "reader" not in roles:
        return None
    out = place.fresh()
    if plan["target"] is None:
        reply = reader.request("read", {"path": str(path), "atom": "w", "slot": "value", "out": str(out)})
        fault = _failed(reader, "reader", reply, "read")
        if fault is not None:
            return fault
        if not same(reply.body, {"dtype": plan["dtype"], "shape": plan["shape"]}):
            return wrong("reader", f"another description: {reply.body}")
        return None if out.exists() and out.read_bytes() == data else wrong("reader", "the bytes are others")
    target = plan["target"]
    expected = lower(**target, shape=plan["shape"])
    reply = reader.request("lower", {**target, "shape": plan["shape"]})
    fault = _failed(reader, "reader", reply, "lower")
    if fault is not None:
        return fault
    wanted = [
        {
            "coordinate": list(coordinate),
            "shape": None if local is None else list(local.shape),
            "pieces": [] if local is None else pieces(local, view_of(target["steps"], plan["shape"])),
        }
        for coordinate, local in expected.items()
    ]
    if not same(reply.body["locals"], wanted):
        return wrong(
            "reader", f"expected the pieces {json.dumps(wanted)}; got {json.dumps(reply.body['locals'])}"
        )
    outs = [(coordinate, place.fresh()) for coordinate in expected]
    params = {
        "path": str(path), "atom": "w", "slot": "value", **target,
        "outs": [{"coordinate": list(coordinate), "out": str(file)} for coordinate, file in outs],
        **({"restored": [IMAGE]} if plan.get("image") else {}),
    }  # fmt: skip
    reply = reader.request("read", params)
    refusal = refusal_of(plan)
    if refusal is not None and reply.kind == "error":
        code = reply.body["code"]
        return None if code == refusal else wrong("reader", f"refused with {code} and not {refusal}")
    fault = _failed(reader, "reader", reply, "read under a layout")
    if fault is None and refusal is not None:
        fault = wrong("reader", f"read what is to be refused with {refusal}")
    if fault is not None:
        return fault
    for (coordinate, file), answer in zip(outs, reply.body.get("locals", []), strict=False):
        local = expected[coordinate]
        shape = None if local is None else list(local.shape)
        if answer != {"coordinate": list(coordinate), "shape": shape}:
            return wrong("reader", f"at {coordinate}: {answer} and not the shape {shape}")
        if local is not None and (
            not file.exists() or file.read_bytes() != local_of(plan, "target", data, coordinate, local)
        ):
            return wrong("reader", f"at {coordinate}: the bytes are others")
    return (
        None
        if len(reply.body.get("locals", [])) == len(outs)
        else wrong("reader", "some coordinates are missing")
    )


def _rewrite(
    rewriter: Connection, path: Path, plan: Mapping[str, Any], data: bytes, place: Workplace
) -> Fault | None:
    if plan["rewrite"] is None or "rewriter" not in rewriter.hello().document["roles"]:
        return None
    target = place.fresh()
    params = {"source": str(path), "path": str(target), "storage": plan["rewrite"]}
    fault = _failed(rewriter, "rewriter", rewriter.request("rewrite", params), "rewrite")
    if fault is not None:
        return fault
    seen = examine(target)
    if seen.errors or seen.logical is None:
        return Fault(
            rewriter.label, "rewriter", "fail", f"what was rewritten is not good: {listed(seen.problems)}"
        )
    if seen.logical.data.get(("w", "value"), data) != data:
        return Fault(rewriter.label, "rewriter", "fail", "the rewritten bytes are others")
    if seen.logical.images != ({(IMAGE, 0): b"memory"} if plan.get("image") else {}):
        return Fault(rewriter.label, "rewriter", "fail", "the rewritten process images are others")
    return None
