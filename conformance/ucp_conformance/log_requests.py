"""Judging static checks of writers of update logs: what comes of one request, behind others that prepare it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ucp_conformance.connection import Connection, Reply
from ucp_conformance.judge import PASS, Verdict, judge_refusal, no_answer
from ucp_conformance.log_written import batch_fault, epoch_fault
from ucp_conformance.oracle.strict_json import same
from ucp_conformance.oracle.update_logs import Batch, UpdateLog
from ucp_conformance.vectors import Vector
from ucp_conformance.workplace import Workplace, snapshot

__all__ = ["LOG_WRITES", "judge_log_write"]

LOG_WRITES: Final = ("begin-epoch", "write-batch")
"""What is asked of those who claim to write logs."""
_DRAWN: Final = {"log": "0" * 32, "start": "0" * 32}


def judge_log_write(
    connection: Connection, vector: Vector, check: Mapping[str, Any]
) -> tuple[Verdict, float]:
    """Return the verdict on a check of the case, and the time the driver took for it."""
    place = Workplace()
    try:
        path = place.checkpoint(vector.checkpoint, vector.case.get("setup", [])) / check["within"]
        path.parent.mkdir(exist_ok=True)
        asked = _Requests(connection, path, vector.expected, place)
        for one in check.get("before", ()):
            if "put" in one:
                (path / one["put"]).parent.mkdir(parents=True, exist_ok=True)
                (path / one["put"]).write_bytes(vector.expected[one["file"]])
                continue
            verdict, reply = asked.request(one["op"], one["params"], None)
            if verdict != PASS:
                return (verdict[0], f"{one['op']} before it: {verdict[1]}"), reply.ms
        verdict, reply = asked.request(check["op"], check["params"], check["expect"])
        return verdict, reply.ms
    finally:
        place.close()


@dataclass
class _Requests:
    """Requests to a driver about one log; ``stands`` are the states and digests that ranks of epochs go on from."""

    connection: Connection
    path: Path
    expected: Mapping[str, bytes]
    place: Workplace
    stands: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)

    def request(
        self, op: str, params: Mapping[str, Any], expect: Mapping[str, Any] | None
    ) -> tuple[Verdict, Reply]:
        """Send a request, and judge what comes of it; without ``expect`` it has to be done, and right."""
        given = json.loads(json.dumps({**params, "path": str(self.path)}))
        inputs: dict[str, bytes] = {}
        for one in _files(given):
            data = self.expected[one["in"]]
            one["in"] = self.place.put(data)
            inputs[one["in"]] = data
        old = snapshot(self.path)
        reply = self.connection.request(op, given)
        failed = no_answer(reply)
        if failed is None and expect is not None and "error" in expect:
            failed = judge_refusal(reply, expect["error"])
            made = _changed(old, snapshot(self.path))
            if failed == PASS and made:
                failed = "fail", f"it was refused, and {made[0]} was made, changed or removed all the same"
        elif failed is None and reply.kind == "unsupported":
            failed = "unsupported", str(reply.body["feature"])
        elif failed is None and reply.kind != "result":
            failed = "fail", f"{reply.body['code']} at {reply.body['at']}: {reply.body['detail']}"
        if failed is None:
            judge = self._begun if op == "begin-epoch" else self._written
            fault = judge(given, reply.body, old, inputs, expect or {})
            failed = PASS if fault is None else ("fail", fault)
        return failed, reply

    def _begun(
        self,
        params: Mapping[str, Any],
        result: Mapping[str, Any],
        old: Mapping[str, bytes],
        inputs: Mapping[str, bytes],
        expect: Mapping[str, Any],
    ) -> str | None:
        """Return what is wrong with an epoch that was begun."""
        del inputs
        wanted = expect.get("epoch", {"number": result["epoch"]})
        fault = epoch_fault(self.path, params, result, wanted["number"])
        if fault is not None:
            return fault
        key = f"epochs/{result['epoch']}.json"
        if (made := _changed(old, snapshot(self.path))) != sorted({key, *({"log.json"} - old.keys())}):
            return f"it made or changed {made}"
        log = UpdateLog(self.path)
        epoch, _ = log.epoch(result["epoch"])
        others = [
            log.id,
            *(log.epoch(number)[0]["start"] for number in log.epochs if number != epoch["epoch"]),
        ]
        if epoch["start"] in others:
            return "its `start` is not drawn"
        if "document" not in wanted:
            return None
        document = json.loads(self.expected[wanted["document"]])
        # What the writer draws is whatever it is, unless the log was there.
        told = {**epoch, **{name: drawn for name, drawn in _DRAWN.items() if document[name] == drawn}}
        return None if same(told, document) else f"expected {document}; got {epoch}"

    def _written(
        self,
        params: Mapping[str, Any],
        result: Mapping[str, Any],
        old: Mapping[str, bytes],
        inputs: Mapping[str, bytes],
        expect: Mapping[str, Any],
    ) -> str | None:
        """Return what is wrong with a batch that was written."""
        rank = params["epoch"], params["rank"]
        epoch, digest = UpdateLog(self.path).epoch(params["epoch"])
        first, before = self.stands.get(rank, (epoch["first_step"], digest))
        key = f"batches/{rank[0]}/{rank[1]}/{first}.batch"
        if (made := _changed(old, snapshot(self.path))) != [key]:
            return f"it made or changed {made}, and not {key}"
        fault, digest = batch_fault(self.path, params, first, before, inputs)
        if fault is not None:
            return fault
        stop = first + len(params["steps"])
        if result["durable_step"] != stop:
            return f"the durable step is {stop}, and not {result['durable_step']}"
        self.stands[rank] = stop, digest
        if "batch" not in expect:
            return None
        batch = UpdateLog(self.path).batch(key, epoch, rank[1], first, before)
        return _differs(batch, expect["batch"], self.expected)


def _differs(batch: Batch, wanted: Mapping[str, Any], expected: Mapping[str, bytes]) -> str | None:
    """Return how a batch differs from what a case says of it."""
    found = {(one["tensor"], one["slot"]): one["sum"] for one in batch.header.get("sums", ())}
    sums = {(one["tensor"], one["slot"]): one["sum"] for one in wanted.get("sums", ())}
    if found != sums:
        return f"sums: expected {sums}; got {found}"
    if batch.first != wanted["first_step"]:
        return f"first_step: expected {wanted['first_step']}; got {batch.first}"
    if "payload" in wanted:
        payload = b"".join(data for _, _, data in batch.steps)
        if payload != expected[wanted["payload"]]:
            return f"payload: expected {expected[wanted['payload']].hex()}; got {payload.hex()}"
    return None


def _files(params: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what names files of elements in a request."""
    for step in params.get("steps", ()):
        yield from step["entries"]
    yield from params.get("sums", ())


def _changed(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> list[str]:
    """Return keys of objects that are new, others than before, or gone."""
    return sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
