"""Stateful mode: save, crash, save again, rewrite, read, by different implementations on one store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from ucp_conformance.connection import Connection, Reply
from ucp_conformance.exchange import Fault
from ucp_conformance.judge import judge_written, listed
from ucp_conformance.oracle.examine import examine
from ucp_conformance.results import Result
from ucp_conformance.workplace import Workplace, snapshot

__all__ = ["REQUIREMENTS", "run_stateful"]

REQUIREMENTS = (
    "UCP-R-011", "UCP-W-002", "UCP-W-003", "UCP-W-004", "UCP-W-005", "UCP-W-006", "UCP-W-027",
)  # fmt: skip
"""What sequences hold: after a crash there is a whole checkpoint or none, and a published one never changes."""

_SLOTS = ("places/0", "places/1", "places/2")


class _Sequence:
    """A store of a few places, what each is known to hold, and the actors."""

    def __init__(self, actors: Sequence[Connection], random: Random, lacking: set[tuple[str, str]]) -> None:
        self.actors = actors
        self.lacking = lacking
        self.random = random
        self.place = Workplace()
        self.paths = {name: self.place.fresh() for name in _SLOTS}
        self.held: dict[str, tuple[bytes, dict[str, bytes]]] = {}
        self.debris: set[str] = set()
        self.log: list[str] = []

    def step(self) -> Fault | None:
        """Return one random action."""
        name = self.random.choice(_SLOTS)
        actor = self.random.choice(self.actors)
        roles = [role for role in actor.hello().document["roles"] if (actor.label, role) not in self.lacking]
        actions = ["read", "save", "save", "crash"] if "writer" in roles else ["read"]
        if "rewriter" in roles and self.held:
            actions.append("rewrite")
        action = self.random.choice(actions)
        self.log.append(f"{actor.label} {action} {name}")
        match action:
            case "save":
                return self.save(actor, name)
            case "crash":
                return self.crash(actor, name)
            case "rewrite":
                return self.rewrite(actor, name)
            case _:
                return self.read(actor, name) if "reader" in roles else None

    def params(self, name: str) -> tuple[dict[str, Any], bytes]:
        count = self.random.choice([3, 40, 300])
        data = self.random.randbytes(4 * count)
        atoms = [
            {
                "name": f"a{number}",
                "slots": {"value": {"dtype": "float32", "shape": [count], "in": self.place.put(data)}},
            }
            for number in range(self.random.choice([1, 5]))
        ]
        storage = self.random.choice(["plain", "packed"])
        return {"path": str(self.paths[name]), "storage": storage, "chunk_bytes": 64, "atoms": atoms}, data

    def fault(self, actor: Connection, role: str, why: str, outcome: str = "fail") -> Fault:
        if " came to unsupported" in why:
            # No failure and no pass; later sequences do without it.
            self.lacking.add((actor.label, role))
            outcome = "unsupported"
        return Fault(actor.label, role, outcome, f"{why} after {'; '.join(self.log[-8:])}")

    def save(self, actor: Connection, name: str) -> Fault | None:
        """Check that a published checkpoint refuses a save and stays, and that any other directory takes a new one."""
        params, data = self.params(name)
        reply = actor.request("write", params)
        if name in self.held:
            if reply.kind != "error" or reply.body["code"] != "UCP-E-EXISTS":
                return self.fault(
                    actor, "writer", f"a write over a checkpoint came to {reply.kind} {reply.body}"
                )
            return self.unchanged(actor, name, "writer")
        if self.refuses_debris(name, reply):
            return None
        if reply.kind != "result":
            return self.fault(actor, "writer", f"a write came to {reply.kind} {reply.body}")
        wanted = {f"{atom['name']}/value": data for atom in params["atoms"]}
        outcome, why = judge_written(self.paths[name], params, wanted, reply.body["digest"])
        if outcome != "pass":
            return self.fault(actor, "writer", why, outcome)
        self.held[name] = data, snapshot(self.paths[name])
        return None

    def refuses_debris(self, name: str, reply: Reply) -> bool:
        """Return whether an attempt refuses a directory with debris, as one that does not clear it must (UCP-W-007)."""
        refused = reply.kind == "error" and reply.body["code"] == "UCP-E-EXISTS"
        return refused and name in self.debris

    def crash(self, actor: Connection, name: str) -> Fault | None:
        """Check that a driver killed while it writes leaves a whole checkpoint or none."""
        params, data = self.params(name)
        actor.send_and_kill("write", params, self.random.choice([0.0, 0.002, 0.005, 0.01, 0.02, 0.05]))
        if name in self.held:
            return self.unchanged(actor, name, "writer")
        if not (self.paths[name] / "ucp.json").exists():
            self.debris.add(name)
            return None
        seen = examine(self.paths[name])
        if seen.errors or seen.logical is None or set(seen.logical.data.values()) != {data}:
            return self.fault(actor, "writer", f"a torn checkpoint was published: {listed(seen.problems)}")
        self.held[name] = data, snapshot(self.paths[name])
        return None

    def rewrite(self, actor: Connection, name: str) -> Fault | None:
        """Rewrite a checkpoint that some driver wrote, to a directory that may be taken."""
        source = self.random.choice(sorted(self.held))
        storage = self.random.choice(["plain", "packed"])
        params = {"source": str(self.paths[source]), "path": str(self.paths[name]), "storage": storage}
        reply = actor.request("rewrite", params)
        if name in self.held:
            if reply.kind != "error" or reply.body["code"] != "UCP-E-EXISTS":
                return self.fault(
                    actor, "rewriter", f"a rewrite over a checkpoint came to {reply.kind} {reply.body}"
                )
            return self.unchanged(actor, name, "rewriter")
        if self.refuses_debris(name, reply):
            return None
        if reply.kind != "result":
            return self.fault(actor, "rewriter", f"a rewrite came to {reply.kind} {reply.body}")
        seen = examine(self.paths[name])
        data = self.held[source][0]
        if seen.errors or seen.logical is None or set(seen.logical.data.values()) != {data}:
            return self.fault(actor, "rewriter", f"what was rewritten is not good: {listed(seen.problems)}")
        self.held[name] = data, snapshot(self.paths[name])
        return self.unchanged(actor, source, "rewriter")

    def read(self, actor: Connection, name: str) -> Fault | None:
        """Check that what was published reads, and that what was not is not there."""
        out = self.place.fresh()
        params = {"path": str(self.paths[name]), "atom": "a0", "slot": "value", "out": str(out)}
        reply = actor.request("read", params)
        if name not in self.held:
            if reply.kind != "error" or reply.body["code"] != "UCP-E-NOT-FOUND":
                return self.fault(actor, "reader", f"a read of nothing came to {reply.kind} {reply.body}")
            return None
        if reply.kind != "result" or out.read_bytes() != self.held[name][0]:
            return self.fault(actor, "reader", f"a read came to {reply.kind} {reply.body}")
        return self.unchanged(actor, name, "reader")

    def unchanged(self, actor: Connection, name: str, role: str) -> Fault | None:
        found = snapshot(self.paths[name])
        if any(found.get(key) != data for key, data in self.held[name][1].items()):
            return self.fault(actor, role, f"a published checkpoint was changed: {Path(name).name}")
        return None


def run_stateful(
    connections: Sequence[Connection], tell: Callable[[Result], None], *, sequences: int, seed_: int
) -> Iterator[Result]:
    """Yield a result per driver and role, after sequences in which all drivers take part."""
    faults: dict[tuple[str, str], Fault] = {}
    lacking: set[tuple[str, str]] = set()
    for number in range(sequences if connections else 0):
        sequence = _Sequence(connections, Random(1000 * seed_ + number), lacking)  # noqa: S311 - no secret
        try:
            for _ in range(12):
                fault = sequence.step()
                if fault is not None:
                    faults.setdefault((fault.blamed, fault.role), fault)
                    break
        finally:
            sequence.place.close()
        if len(faults) and any(connection.failures_in_a_row > 3 for connection in connections):
            break
    for connection in connections:
        for role in ("reader", "writer", "rewriter"):
            if role not in connection.hello().document["roles"]:
                continue
            fault = faults.get((connection.label, role))
            result = Result(
                id=f"stateful/{connection.label}:{role}",
                driver=connection.label,
                role=role,
                level="full",
                outcome=fault.outcome if fault else "pass",
                requirements=REQUIREMENTS,
                detail=fault.why if fault else f"{sequences} sequences",
            )
            tell(result)
            yield result
