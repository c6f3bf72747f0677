"""Judging one check of a static case: what is sent, and whether what comes back is right."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ucp_conformance.connection import Connection, Reply
from ucp_conformance.oracle import images
from ucp_conformance.oracle.bytes_of import content_digest
from ucp_conformance.oracle.examine import Logical, examine
from ucp_conformance.oracle.problem import Problem
from ucp_conformance.oracle.strict_json import same
from ucp_conformance.vectors import Vector
from ucp_conformance.watch import watching
from ucp_conformance.workplace import Workplace, snapshot

__all__ = ["PASS", "Verdict", "at_matches", "judge", "judge_refusal", "judge_written", "listed", "no_answer"]

Verdict = tuple[str, str]
"""An outcome, and why."""

PASS: Verdict = ("pass", "")


def listed(problems: Sequence[Problem]) -> str:
    """Return what the oracle found, in words."""
    return ", ".join(f"{problem.code} at {problem.at} ({problem.why})" for problem in problems)


def judge(connection: Connection, vector: Vector, check: Mapping[str, Any]) -> tuple[Verdict, float]:
    """Return the verdict on a check of the case, and the time the driver took."""
    expected = vector.expected
    place = Workplace()
    try:
        path = place.checkpoint(vector.checkpoint, vector.case.get("setup", [])) / check.get("within", "")
        params, outs = _params(check, path, expected, place)
        before = snapshot(path) if check.get("onto") else {}
        with watching(Path(params["path"])) if check.get("watched") else nullcontext(()) as events:
            reply = connection.request(check["op"], params)
        if (connection.scratch / "executed").exists() or list(place.root.rglob("executed")):
            return ("fail", "something that the checkpoint contains was executed"), reply.ms
        if reply.kind == "error" and reply.body["code"] in check.get("may_refuse", ()):
            verdict = PASS
        else:
            verdict = _verdict(check, reply, expected, path, params, outs)
        if verdict == PASS and before:
            verdict = _left_behind(check, path, before)
        if verdict == PASS and events:
            verdict = "fail", f"ucp.json was {events[0]}: it has to appear whole, by a rename or a link"
        return verdict, reply.ms
    finally:
        place.close()


def _left_behind(check: Mapping[str, Any], path: Path, before: Mapping[str, bytes]) -> Verdict:
    """Return what a writer has made of a place where something lay: nothing, or, of debris, all its own."""
    if "may_refuse" not in check:
        same_as_before = snapshot(path) == before
        return PASS if same_as_before else ("fail", "objects of a published checkpoint were changed")
    problems = examine(path).problems if (path / "ucp.json").exists() else []
    if not problems:
        return PASS
    return "fail", f"what lay there before is among what was written: {problems[0].code} at {problems[0].at}"


def _params(
    check: Mapping[str, Any], path: Path, expected: Mapping[str, bytes], place: Workplace
) -> tuple[dict[str, Any], list[tuple[Any, Path]]]:
    """Return parameters as they are sent, and the files that the driver is to write, after coordinates."""
    params = json.loads(json.dumps(check["params"]))
    outs: list[tuple[Any, Path]] = []
    match check["op"]:
        case "lower":
            return params, outs
        case "rewrite":
            return {**params, "source": str(path), "path": str(place.fresh())}, outs
        case "write":
            _fill_inputs(params, expected, place)
            target = path if check.get("onto") else place.fresh()
            if check.get("watched"):
                target.mkdir()
            return {**params, "path": str(target)}, outs
        case "read" if "mesh" in params:
            coordinates = [local["coordinate"] for local in check["expect"].get("locals", [])] or [
                [0] * len(params["mesh"]["axes"])
            ]
            outs = [(coordinate, place.fresh()) for coordinate in coordinates]
            params["outs"] = [{"coordinate": coordinate, "out": str(out)} for coordinate, out in outs]
        case "read" | "read-blob":
            outs = [(None, place.fresh())]
            params["out"] = str(outs[0][1])
        case "log" if "checkpoint" in params:
            params["checkpoint"] = str(path.parent / params["checkpoint"])
            outs = [(atom, place.fresh()) for atom in check["expect"].get("values", ())]
            params["outs"] = [{"atom": atom, "out": str(out)} for atom, out in outs]
    return {**params, "path": str(path)}, outs


def _fill_inputs(params: dict[str, Any], expected: Mapping[str, bytes], place: Workplace) -> None:
    for atom in params["atoms"]:
        for slot in atom["slots"].values():
            for holder in (slot, *slot.get("ins", ())):
                if "in" in holder:
                    holder["in"] = place.put(expected[holder["in"]])
    for blob in params.get("blobs", {}).values():
        blob["in"] = place.put(expected[blob["in"]])


def _verdict(
    check: Mapping[str, Any],
    reply: Reply,
    expected: Mapping[str, bytes],
    path: Path,
    params: Mapping[str, Any],
    outs: Sequence[tuple[Any, Path]],
) -> Verdict:
    expect = check["expect"]
    failed = no_answer(reply)
    if failed is not None:
        return failed
    if "problems" in expect:
        return _problems(reply, expect["problems"])
    if "error" in expect:
        return judge_refusal(reply, expect["error"])
    if reply.kind == "unsupported":
        return "unsupported", str(reply.body["feature"])
    if reply.kind != "result":
        return "fail", f"{reply.body['code']} at {reply.body['at']}: {reply.body['detail']}"
    result = reply.body
    if "written" in expect:
        data = {name: expected[file] for name, file in expect["written"].items()}
        return judge_written(Path(params["path"]), params, data, result["digest"])
    if "rewritten" in expect:
        return _rewritten(
            path, Path(params["path"]), params["storage"], expect["rewritten"], result["digest"]
        )
    if "locals" in expect:
        return _locals(result, expect, expected, outs)
    if "tensor" in expect:
        return _differs(result, expect["tensor"]) or _bytes(outs[0][1], expected[expect["file"]])
    if "media_type" in expect:
        wanted = {"media_type": expect["media_type"]}
        return _differs(result, wanted) or _bytes(outs[0][1], expected[expect["file"]])
    verdict = _differs(result, json.loads(expected[expect["file"]])) or PASS
    for atom, out in outs:
        if verdict == PASS and (found := _bytes(out, expected[expect["values"][atom]])) != PASS:
            verdict = "fail", f"{atom}: {found[1]}"
    return verdict


def no_answer(reply: Reply) -> Verdict | None:
    """Return the verdict where a driver did not answer, None where it did."""
    if reply.kind in ("timeout", "crash"):
        return reply.kind, str(reply.body["detail"])
    if not reply.is_answer:
        return "protocol", f"{reply.kind}: {reply.body['detail']}"
    return ("fail", f"internal: {reply.body['detail']}") if reply.kind == "internal" else None


def at_matches(found: str, wanted: Sequence[str]) -> bool:
    """Return whether a place is one of those wanted: the same key, and one pointer the beginning of the other."""
    key, _, pointer = found.partition("#")
    for place in wanted:
        other, _, rest = place.partition("#")
        if key != other:
            continue
        mine, theirs = pointer.split("/"), rest.split("/")
        short = min(len(mine), len(theirs))
        if not pointer.startswith("/") or not rest or mine[:short] == theirs[:short]:
            return True
    return False


def _problems(reply: Reply, expect: Mapping[str, Any]) -> Verdict:
    if reply.kind == "unsupported":
        return "unsupported", str(reply.body["feature"])
    if reply.kind != "result":
        return "fail", f"a validator lists problems, it does not refuse: {json.dumps(reply.body)}"
    problems = reply.body["problems"]
    codes = [problem["code"] for problem in problems]
    wanted = expect["codes"]
    shown = ", ".join(f"{problem['code']} at {problem['at']}" for problem in problems) or "nothing"
    if not wanted:
        return PASS if not codes else ("fail", f"expected no problem; reported {shown}")
    hits = [problem for problem in problems if problem["code"] in wanted]
    if not hits:
        return "fail", f"expected {' or '.join(wanted)}; reported {shown}"
    missing = [code for code in wanted if code not in codes]
    if expect.get("every") and missing:
        return "fail", f"reported {shown}; expected {' and '.join(missing)} as well"
    ruled_out = [code for code in codes if code in expect.get("never", ())]
    if ruled_out:
        return "fail", f"reported {shown}; {ruled_out[0]} is ruled out beside {' or '.join(wanted)}"
    if not expect["also"] and len(hits) < len([code for code in codes if not code.startswith("UCP-W-")]):
        return "fail", f"expected nothing but {' or '.join(wanted)}; reported {shown}"
    if "at" in expect and not any(at_matches(problem["at"], expect["at"]) for problem in hits):
        return "fail", f"expected at {' or '.join(expect['at'])}; reported {shown}"
    return PASS


def judge_refusal(reply: Reply, expect: Mapping[str, Any]) -> Verdict:
    """Return whether a request was refused as it has to be."""
    if reply.kind == "unsupported":
        return "unsupported", str(reply.body["feature"])
    if reply.kind != "error":
        return "fail", f"accepted; expected {' or '.join(expect['codes'])}"
    if reply.body["code"] not in expect["codes"]:
        return "fail", f"{reply.body['code']} at {reply.body['at']}; expected {' or '.join(expect['codes'])}"
    if "at" in expect and not at_matches(reply.body["at"], expect["at"]):
        return "fail", f"{reply.body['code']} at {reply.body['at']}; expected at {' or '.join(expect['at'])}"
    return PASS


def _differs(found: Any, wanted: Any) -> Verdict | None:
    if same(found, wanted):
        return None
    return "fail", f"expected {json.dumps(wanted)}; got {json.dumps(found)}"


def _bytes(path: Path, wanted: bytes) -> Verdict:
    if not path.exists():
        return "fail", "no file was written"
    found = path.read_bytes()
    if len(found) != len(wanted):
        return "fail", f"{len(found)} bytes and not {len(wanted)}"
    if found != wanted:
        place = next(number for number in range(len(found)) if found[number] != wanted[number])
        return "fail", f"byte {place} of {len(found)} is {found[place]} and not {wanted[place]}"
    return PASS


def _locals(
    result: Mapping[str, Any],
    expect: Mapping[str, Any],
    expected: Mapping[str, bytes],
    outs: Sequence[tuple[Any, Path]],
) -> Verdict:
    wanted = {
        "dtype": expect["dtype"],
        "locals": [
            {"coordinate": local["coordinate"], "shape": local["shape"]} for local in expect["locals"]
        ],
    }
    differs = _differs(result, wanted)
    if differs is not None:
        return differs
    for local, (_, out) in zip(expect["locals"], outs, strict=True):
        if local["file"] is None:
            if out.exists():
                return "fail", f"a file was written for {local['coordinate']}, which holds nothing"
            continue
        verdict = _bytes(out, expected[local["file"]])
        if verdict != PASS:
            return "fail", f"at {local['coordinate']}: {verdict[1]}"
    return PASS


def _drafts(path: Path) -> Verdict | None:
    """Return whether a draft lies beside the root document that it became (UCP-W-014)."""
    left = sorted(item.name for item in path.glob(".ucp.json.*"))
    return ("fail", f"the draft {left[0]} is still there") if left else None


def judge_written(path: Path, params: Mapping[str, Any], data: Mapping[str, bytes], digest: str) -> Verdict:
    """Return whether the checkpoint at ``path`` is good and holds what ``params`` of a write asked for."""
    seen = examine(path)
    if seen.errors or seen.logical is None:
        return "fail", f"what was written is not good: {listed(seen.problems)}"
    left = _drafts(path)
    if left is not None:
        return left
    logical = seen.logical
    found = logical.inspect()
    wanted: dict[str, Any] = {
        "storage": params["storage"],
        "chunk_bytes": params["chunk_bytes"],
        "step": params.get("step"),
        "values": params.get("values", {}),
        "optimizers": params.get("optimizers", {}),
    }
    for name, value in wanted.items():
        differs = _differs(found[name], value)
        if differs is not None:
            return "fail", f"{name}: {differs[1]}"
    if logical.root["digest"] != digest:
        return "fail", "the reply tells another root digest"
    return (
        _atoms_written(logical, found, params, data)
        or _blobs_written(logical, params)
        or _process_written(logical, params)
        or PASS
    )


def _atoms_written(
    logical: Logical, found: Mapping[str, Any], params: Mapping[str, Any], data: Mapping[str, bytes]
) -> Verdict | None:
    asked = {atom["name"]: atom for atom in params["atoms"]}
    if [atom["name"] for atom in found["atoms"]] != sorted(asked, key=str.encode):
        return "fail", "other atoms were written"
    stored = {atom["name"]: atom for atom in logical.atoms}
    for atom in found["atoms"]:
        name = atom["name"]
        if sorted(atom["aliases"]) != sorted(asked[name].get("aliases", [])):
            return "fail", f"other aliases of {json.dumps(name)}"
        if atom["slots"].keys() != asked[name]["slots"].keys():
            return "fail", f"other slots of {json.dumps(name)}"
        for slot_name, slot in asked[name]["slots"].items():
            mine = atom["slots"][slot_name]
            wanted = {"dtype": slot["dtype"], "shape": slot["shape"]}
            layout = {"mesh": slot["mesh"], "steps": slot["steps"]} if "mesh" in slot else None
            differs = _differs({key: mine[key] for key in wanted}, wanted) or _differs(
                [mine["layout"], mine.get("place")], [layout, slot.get("place")]
            )
            if differs is not None:
                return "fail", f"{name}/{slot_name}: {differs[1]}"
            recorded = stored[name]["slots"][slot_name]
            if not same(recorded.get("compressor"), slot.get("compressor")):
                return "fail", f"{name}/{slot_name}: another compressor"
            want = data[f"{name}/{slot_name}"]
            have = logical.data.get((name, slot_name))
            if have is None:
                # A compressor that the oracle lacks: the content digest speaks for the bytes.
                if recorded.get("content", content_digest(want)) != content_digest(want):
                    return "fail", f"{name}/{slot_name}: the content digest is another"
            elif have != want:
                return "fail", f"{name}/{slot_name}: the bytes are others"
    return None


def _blobs_written(logical: Logical, params: Mapping[str, Any]) -> Verdict | None:
    for name, blob in params.get("blobs", {}).items():
        if logical.blobs.get(name) != Path(blob["in"]).read_bytes():
            return "fail", f"the bytes of the blob {json.dumps(name)} are others"
    return None


def _process_written(logical: Logical, params: Mapping[str, Any]) -> Verdict | None:
    """Whether the pipeline and the process images are those that were asked for."""
    if not same(logical.state.get("pipeline"), params.get("pipeline")):
        return "fail", "another pipeline was written"
    wanted = params.get("images", {})
    described = {
        name: {**image, "files": [{**file, "object": None} for file in image["files"]]}
        for name, image in wanted.items()
    }
    for image in described.values():
        for file in image["files"]:
            del file["in"]
    if not same(images.described(logical.state), described):
        return "fail", "other process images were written"
    for name, image in wanted.items():
        for number, file in enumerate(image["files"]):
            if logical.images.get((name, number)) != Path(file["in"]).read_bytes():
                return "fail", f"the bytes of the image {json.dumps(name)} are others"
    return None


def _rewritten(source: Path, path: Path, storage: str, expect: Mapping[str, Any], digest: str) -> Verdict:
    before, after = examine(source), examine(path)
    if before.logical is None:
        raise AssertionError("the source of a rewrite is not good")
    if after.errors or after.logical is None:
        return "fail", f"what was written is not good: {listed(after.problems)}"
    left = _drafts(path)
    if left is not None:
        return left
    if after.logical.root["storage"] != storage or after.logical.root["digest"] != digest:
        return "fail", "another storage or digest"
    differs = _differs(after.logical.kept(), before.logical.kept())
    if differs is not None:
        return differs
    common = before.logical.data.keys() & after.logical.data.keys()
    changed = [name for name in common if before.logical.data[name] != after.logical.data[name]]
    if (
        changed
        or before.logical.blobs != after.logical.blobs
        or before.logical.images != after.logical.images
    ):
        return "fail", f"other bytes: {json.dumps(changed)}"
    if "extensions" in expect:
        return _differs(after.logical.root["extensions"], expect["extensions"]) or PASS
    return PASS
