"""A run with an update log: its checkpoints, and what implementations recover of it, judged by the oracle."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ucp_conformance.connection import Connection
from ucp_conformance.drafting import AtomDraft, Draft, SlotDraft, write_files
from ucp_conformance.exchange import Fault
from ucp_conformance.judge import at_matches
from ucp_conformance.log_model import LogModel
from ucp_conformance.oracle.examine import examine
from ucp_conformance.oracle.log_replay import Recovered, recovered
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import same
from ucp_conformance.oracle.update_logs import UpdateLog, log_problems
from ucp_conformance.workplace import Workplace

__all__ = ["FoundError", "LogRun", "reads_logs"]


def reads_logs(connection: Connection) -> bool:
    """Return whether a driver claims to read logs."""
    claims = connection.hello()
    return "update-log" in claims.document["read_features"] and "reader" in claims.document["roles"]


class FoundError(Exception):
    """Somebody is wrong."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.why)
        self.fault = fault


class LogRun:
    """A log and the checkpoints beside it; ``told`` is what has happened, in words."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        self.plan = plan
        self.model = LogModel(plan)
        self.place = Workplace()
        self.folder = self.place.fresh()
        self.folder.mkdir()
        self.path = self.folder / "updates.ucplog"
        self.checkpoints: list[Path] = []
        self.told: list[str] = []

    def fail(self, connection: Connection, role: str, why: str, outcome: str = "fail") -> NoReturn:
        """Say that somebody is wrong, and what has happened before."""
        told = "; ".join(self.told[-6:])
        raise FoundError(Fault(connection.label, role, outcome, f"{why}, after: {told}", connection.stderr()))

    def asked(self, connection: Connection, role: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a request; somebody is wrong where there is none."""
        reply = connection.request(method, params)
        if reply.kind != "result":
            said = reply.kind in ("crash", "timeout", "unsupported")
            outcome = reply.kind if said else "fail" if reply.is_answer else "protocol"
            self.fail(connection, role, f"{method} came to {reply.kind} {reply.body}", outcome)
        return reply.body

    def checkpoint(self, epoch: int, step: int, state: Mapping[str, bytes]) -> None:
        """Put a checkpoint of a state beside the log."""
        shapes, dtypes = self.model.shapes(), self.model.dtypes()
        atoms = [
            AtomDraft(name, {"value": SlotDraft(dtypes[name], tuple(shapes[name]), data)})
            for name, data in sorted(state.items())
        ]
        position = {"id": UpdateLog(self.path).id, "epoch": epoch}
        root = {"progress": {"step": step, "log": position}}
        path = self.folder / f"step-{step}-{len(self.checkpoints)}.ucp"
        write_files(Draft(atoms, chunk_bytes=64, root=root).files(), path)
        self.checkpoints.append(path)
        self.told.append(f"a checkpoint of step {step} of epoch {epoch}")

    def prune(self, step: int) -> None:
        """Remove the batches that end before a state, the oldest first."""
        log = UpdateLog(self.path)
        for (epoch, rank), firsts in log.firsts.items():
            for first, following in itertools.pairwise(firsts):
                if following <= step:
                    (self.path / f"batches/{epoch}/{rank}/{first}.batch").unlink()
        self.told.append(f"what ends before step {step} is removed")

    def recover(self, reader: Connection) -> Recovered | None:
        """Have an implementation validate, list and recover, and return what comes of the last checkpoint."""
        reads = reads_logs(reader)
        if reads:
            self.told.append(f"{reader.label} recovers")
            self.validate(reader)
        log = UpdateLog(self.path)
        for checkpoint in dict.fromkeys([self.checkpoints[0], self.checkpoints[-1]]):
            for allow_loss in (False, True):
                found = self.oracle(log, checkpoint, allow_loss=allow_loss)
                if reads:
                    self.read(reader, log, checkpoint, found, allow_loss=allow_loss)
                if isinstance(found, Recovered):
                    break
        return found if isinstance(found, Recovered) else None

    def oracle(self, log: UpdateLog, checkpoint: Path, *, allow_loss: bool) -> Recovered | str:
        """Return what a recovery comes to: where it ends, or the code with which it is refused."""
        logical = examine(checkpoint).logical
        try:
            return recovered(log, logical, allow_loss=allow_loss)
        except RefusalError as refusal:
            return refusal.problem.code

    def validate(self, reader: Connection) -> None:
        """Have an implementation validate the log, and compare what it reports with what the oracle does."""
        if "validator" not in reader.hello().document["roles"]:
            return
        params = {"path": str(self.path), "level": "integrity"}
        found = self.asked(reader, "validator", "validate", params)["problems"]
        wanted = log_problems(self.path)
        missing = [
            one
            for one in wanted
            if not any(one.code == other["code"] and at_matches(other["at"], [one.at]) for other in found)
        ]
        if missing or {one["code"] for one in found} != {one.code for one in wanted}:
            said = [f"{one.code} at {one.at}" for one in wanted]
            self.fail(reader, "validator", f"expected {said}; reported {found}")

    def read(
        self,
        reader: Connection,
        log: UpdateLog,
        checkpoint: Path,
        found: Recovered | str,
        *,
        allow_loss: bool,
    ) -> None:
        """Have an implementation list the log and recover, and compare that with what the oracle has found."""
        outs = {name: self.place.fresh() for name in self.model.shapes()}
        params: dict[str, Any] = {
            "path": str(self.path),
            "checkpoint": str(checkpoint),
            "outs": [{"atom": name, "out": str(out)} for name, out in outs.items()],
        }
        if allow_loss:
            params["allow_loss"] = True
        if isinstance(found, str):
            reply = reader.request("log", params)
            if reply.kind != "error" or reply.body["code"] != found:
                self.fail(reader, "reader", f"a recovery came to {reply.kind} {reply.body}, and not {found}")
            return
        result = self.asked(reader, "reader", "log", params)
        recovery = {"step": found.step, "exactness": found.exactness}
        wanted = {**log.described(), "recovery": recovery}
        if not same(result, wanted):
            self.fail(reader, "reader", f"expected {wanted}; got {result}")
        for name, out in outs.items():
            if not out.exists() or out.read_bytes() != found.values[name]:
                self.fail(reader, "reader", f"{name} has other values in state {found.step}")
