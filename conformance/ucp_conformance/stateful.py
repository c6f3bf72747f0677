"""Stateful mode: save, increment, crash, remove, rewrite, read, by different implementations on one store."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    "UCP-W-034",
)  # fmt: skip
"""What sequences hold: after a crash there is a whole checkpoint or none, and a published one never changes."""

_SLOTS = ("places/0", "places/1", "places/2", "places/3")
_STEPS = 16


@dataclass(frozen=True, slots=True)
class _Held:
    """What a place holds: the bytes of every slot, its files, and what was asked for or rewritten."""

    data: bytes
    files: dict[str, bytes]
    params: dict[str, Any]


class _Sequence:
    """A store of a few places, what each is known to hold, and the actors."""

    def __init__(self, actors: Sequence[Connection], random: Random, lacking: set[tuple[str, str]]) -> None:
        self.actors = actors
        self.lacking = lacking
        self.random = random
        self.place = Workplace()
        self.paths = {name: self.place.fresh() for name in _SLOTS}
        self.held: dict[str, _Held] = {}
        self.debris: set[str] = set()
        self.log: list[str] = []

    def step(self) -> Fault | None:
        """Return one random action."""
        name = self.random.choice(_SLOTS)
        actor = self.random.choice(self.actors)
        roles = [role for role in actor.hello().document["roles"] if (actor.label, role) not in self.lacking]
        actions = ["read", "save", "save", "crash"] if "writer" in roles else ["read"]
        if self.held:
            actions.append("remove")
            if "writer" in roles and actor.hello().writes_feature("incremental"):
                actions += ["increment", "increment", "increment"]
        if "rewriter" in roles and self.held:
            actions.append("rewrite")
        action = self.random.choice(actions)
        self.log.append(f"{actor.label} {action} {name}")
        match action:
            case "save":
                return self.save(actor, name)
            case "crash":
                return self.crash(actor, name)
            case "increment":
                return self.save(actor, name, self.random.choice(sorted(self.held)))
            case "remove":
                return self.remove(actor)
            case "rewrite":
                return self.rewrite(actor, name)
            case _:
                return self.read(actor, name) if "reader" in roles else None

    def params(self, actor: Connection, name: str, base: str | None = None) -> tuple[dict[str, Any], bytes]:
        """Return what is to be written, and the bytes of every slot, most of an increment's as in its base."""
        if base is not None:
            return self.increment_of(base, name)
        count = self.random.choice([3, 40, 300])
        data = self.random.randbytes(4 * count)
        place = self.place.put(data)
        atoms: list[dict[str, Any]] = [
            {"name": f"a{number}", "slots": {"value": {"dtype": "float32", "shape": [count], "in": place}}}
            for number in range(self.random.choice([1, 5]))
        ]
        storage = self.random.choice(["plain", "packed"])
        params: dict[str, Any] = {"storage": storage, "chunk_bytes": 64, "atoms": atoms}
        if self.random.random() < 0.3 and actor.hello().writes_feature("process-images"):
            params["images"] = {"trainer/0": self.image()}
        if self.random.random() < 0.3 and actor.hello().writes_feature("weight-versions"):
            atoms[0]["slots"]["version-0"] = atoms[0]["slots"]["value"]
            in_flight = [{"minibatch": 1, "version": 0}]
            params["pipeline"] = {
                "axis": "pp",
                "stages": [{"updates": 1, "atoms": ["a0"], "in_flight": in_flight}],
            }
        return {**params, "path": str(self.paths[name])}, data

    def image(self) -> dict[str, Any]:
        return {
            "media_type": "application/x-example", "producer": {"name": "example", "version": "1"}, "host": {},
            "portable": False, "required": self.random.random() < 0.5, "rank": 0,
            "files": [
                {"path": "image", "in": self.place.put(self.random.randbytes(500))},
                {"path": "bin/restart", "executable": True, "in": self.place.put(b"")},
            ],
        }  # fmt: skip

    def increment_of(self, base: str, name: str) -> tuple[dict[str, Any], bytes]:
        held = self.held[base]
        data = bytearray(held.data)
        for _ in range(self.random.choice([0, 1, 5])):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        place = self.place.put(bytes(data))
        atoms = [
            {**atom, "slots": {slot: {**given, "in": place} for slot, given in atom["slots"].items()}}
            for atom in held.params["atoms"]
        ]
        paths = {"path": str(self.paths[name]), "base": str(self.paths[base])}
        return {**held.params, **paths, "atoms": atoms}, bytes(data)

    def fault(self, actor: Connection, role: str, why: str, outcome: str = "fail") -> Fault:
        if " came to unsupported" in why:
            # No failure and no pass; later sequences do without it.
            self.lacking.add((actor.label, role))
            outcome = "unsupported"
        return Fault(actor.label, role, outcome, f"{why} after {'; '.join(self.log[-8:])}")

    def save(self, actor: Connection, name: str, base: str | None = None) -> Fault | None:
        """Check that a published checkpoint refuses a save and stays, and that any other directory takes a new one."""
        params, data = self.params(actor, name, base)
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
        wanted = {f"{atom['name']}/{slot}": data for atom in params["atoms"] for slot in atom["slots"]}
        outcome, why = judge_written(self.paths[name], params, wanted, reply.body["digest"])
        if outcome != "pass":
            return self.fault(actor, "writer", why, outcome)
        self.hold(name, data, params)
        return None if base is None else self.unchanged(actor, base, "writer")

    def hold(self, name: str, data: bytes, params: dict[str, Any]) -> None:
        kept = {key: value for key, value in params.items() if key not in ("path", "base")}
        self.held[name] = _Held(data, snapshot(self.paths[name]), kept)

    def remove(self, actor: Connection) -> Fault | None:
        """Remove a checkpoint, be it a base or an increment, and check that all others stay as they are."""
        name = self.random.choice(sorted(self.held))
        self.log[-1] = f"remove {name}"
        shutil.rmtree(self.paths[name])
        del self.held[name]
        for other in sorted(self.held):
            if (fault := self.unchanged(actor, other, "writer")) is not None:
                return fault
        return None

    def refuses_debris(self, name: str, reply: Reply) -> bool:
        """Return whether an attempt refuses a directory with debris, as one that does not clear it must (UCP-W-007)."""
        refused = reply.kind == "error" and reply.body["code"] == "UCP-E-EXISTS"
        return refused and name in self.debris

    def crash(self, actor: Connection, name: str) -> Fault | None:
        """Check that a driver killed while it writes leaves a whole checkpoint or none."""
        may_share = self.held and actor.hello().writes_feature("incremental")
        base = self.random.choice(sorted(self.held)) if may_share and self.random.random() < 0.5 else None
        params, data = self.params(actor, name, base)
        actor.send_and_kill("write", params, self.random.choice([0.0, 0.002, 0.005, 0.01, 0.02, 0.05]))
        if name in self.held:
            return self.unchanged(actor, name, "writer")
        if not (self.paths[name] / "ucp.json").exists():
            self.debris.add(name)
            return None if base is None else self.unchanged(actor, base, "writer")
        seen = examine(self.paths[name])
        if seen.errors or seen.logical is None or set(seen.logical.data.values()) != {data}:
            return self.fault(actor, "writer", f"a torn checkpoint was published: {listed(seen.problems)}")
        self.hold(name, data, params)
        return None if base is None else self.unchanged(actor, base, "writer")

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
        held = self.held[source]
        asked: dict[str, Any] = {**held.params, "path": params["path"], "storage": storage}
        if seen.errors or seen.logical is None or set(seen.logical.data.values()) != {held.data}:
            return self.fault(actor, "rewriter", f"what was rewritten is not good: {listed(seen.problems)}")
        wanted = {f"{atom['name']}/{slot}": held.data for atom in asked["atoms"] for slot in atom["slots"]}
        outcome, why = judge_written(self.paths[name], asked, wanted, reply.body["digest"])
        if outcome != "pass":
            return self.fault(actor, "rewriter", why, outcome)
        self.hold(name, held.data, asked)
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
        if reply.kind != "result" or out.read_bytes() != self.held[name].data:
            return self.fault(actor, "reader", f"a read came to {reply.kind} {reply.body}")
        return self.unchanged(actor, name, "reader")

    def unchanged(self, actor: Connection, name: str, role: str) -> Fault | None:
        found = snapshot(self.paths[name])
        if any(found.get(key) != data for key, data in self.held[name].files.items()):
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
            for _ in range(_STEPS):
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
