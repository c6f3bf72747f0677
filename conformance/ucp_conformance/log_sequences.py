"""Lives of update logs: log, crash, recover by another implementation, go on; and the oracle says who is wrong."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucp_conformance.connection import Connection
from ucp_conformance.exchange import Fault
from ucp_conformance.log_run import FoundError, LogRun
from ucp_conformance.log_written import batch_fault, epoch_fault
from ucp_conformance.oracle.log_replay import Recovered
from ucp_conformance.oracle.update_logs import UpdateLog, indices
from ucp_conformance.watch import watching
from ucp_conformance.workplace import snapshot

__all__ = ["REQUIREMENTS", "live", "writes_logs"]

REQUIREMENTS = (
    "UCP-D-150", "UCP-D-153", "UCP-D-157", "UCP-D-159", "UCP-D-164", "UCP-R-038", "UCP-R-039", "UCP-R-040",
    "UCP-R-041", "UCP-R-042", "UCP-R-044", "UCP-R-045", "UCP-R-046", "UCP-W-036", "UCP-W-038", "UCP-W-039",
    "UCP-W-040",
)  # fmt: skip
"""What lives of logs hold."""

_DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02)


def writes_logs(connection: Connection) -> bool:
    """Return whether a driver claims to write logs."""
    claims = connection.hello()
    return claims.writes_feature("update-log") and "writer" in claims.document["roles"]


@dataclass
class _Epoch:
    """An epoch that was begun: by whom, its number, and of each rank where it stands and what it goes on from."""

    actor: Connection
    at: int
    number: int
    first: int
    plan: Mapping[str, Any]
    pieces: list[dict[str, Any]]
    states: list[dict[str, bytes]]
    previous: list[str]
    done: list[int] = field(init=False)
    turn: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.done = [0] * self.plan["ranks"]
        self.turn = [0] * self.plan["ranks"]


def live(
    actors: Sequence[Connection], readers: Sequence[Connection], plan: Mapping[str, Any]
) -> Fault | None:
    """Live through a plan: actors begin its epochs in turn and recover from one another; None if all are right."""
    life = _Life(actors, readers, plan)
    try:
        life.run()
    except FoundError as found:
        return found.fault
    finally:
        life.place.close()
    return None


class _Life(LogRun):
    """A run in which actors log in turn."""

    def __init__(
        self, actors: Sequence[Connection], readers: Sequence[Connection], plan: Mapping[str, Any]
    ) -> None:
        super().__init__(plan)
        self.writers = [actor for actor in actors if writes_logs(actor)]
        self.actors = actors
        self.readers = readers
        self.starts: set[str] = set()

    def run(self) -> None:
        before: _Epoch | None = None
        state, after, step = self.model.begin(), None, 0
        for at in range(len(self.plan["epochs"])):
            actor = self.actors[at % len(self.actors)]
            actor = actor if actor in self.writers else self.writers[0]
            epoch = self.begin(actor, at, after, step, state)
            if at == 0:
                self.checkpoint(epoch.number, 0, state)
            if before is not None:
                self.tried_late(before, epoch)
            self.log(epoch)
            self.end(epoch)
            found = self.recover(self.actors[(at + 1) % len(self.actors)])
            if found is None:
                break  # steps are gone, or nobody but the job itself makes those of its optimizer
            after, step, state = found.epoch, found.step, found.values
            self.compare_with_the_job(epoch, found)
            if epoch.plan["end"]["checkpoint"]:
                self.checkpoint(after, step, state)
                if epoch.plan["end"]["pruned"]:
                    self.prune(step)
            before = epoch
        for reader in self.readers:
            self.recover(reader)

    def begin(
        self, actor: Connection, at: int, after: int | None, step: int, state: dict[str, bytes]
    ) -> _Epoch:
        """Have an implementation begin an epoch, and check it."""
        plan = self.plan["epochs"][at]
        document = self.model.document(plan)
        params = {"path": str(self.path), "after": after, "first_step": step, **document}
        self.told.append(f"{actor.label} begins epoch {at}, of {plan['ranks']} ranks, with step {step}")
        old = snapshot(self.path)
        number = max(UpdateLog(self.path).epochs, default=-1) + 1 if at else 0
        result = self.asked(actor, "writer", "begin-epoch", params)
        self.require_new(actor, old, {f"epochs/{number}.json"} | ({"log.json"} if not at else set()))
        if (fault := epoch_fault(self.path, params, result, number)) is not None:
            self.fail(actor, "writer", f"begin-epoch: {fault}")
        epoch, digest = UpdateLog(self.path).epoch(number)
        if {epoch["start"], result["log"]} & self.starts or epoch["start"] == result["log"]:
            self.fail(actor, "writer", "begin-epoch: its `start` is not drawn")
        self.starts.add(epoch["start"])
        states = [state]
        for n in range(len(plan["steps"])):
            states.append(self.model.after(at, n, states[-1]))
        return _Epoch(actor, at, number, step, plan, document["pieces"], states, [digest] * plan["ranks"])

    def require_new(self, actor: Connection, old: Mapping[str, bytes], wanted: set[str]) -> None:
        """Check that a writer has made just these objects, and has changed none."""
        now = snapshot(self.path)
        if changed := sorted(key for key, data in old.items() if now.get(key) != data):
            self.fail(actor, "writer", f"{changed[0]} was changed or removed")
        if (made := now.keys() - old.keys()) != wanted:
            self.fail(actor, "writer", f"it made {sorted(made)}, and not {sorted(wanted)}")

    def log(self, epoch: _Epoch) -> None:
        """Have the ranks of an epoch write their batches, in the order of the plan and then in turn."""
        batches = epoch.plan["batches"]
        longest = max(map(len, batches))
        turns = [rank for _ in range(longest) for rank in range(len(batches))]
        for rank in [*epoch.plan["order"], *turns]:
            params = self.batch(epoch, rank)
            if params is not None:
                self.write(epoch, rank, *params)

    def batch(self, epoch: _Epoch, rank: int) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return the next batch of a rank as a request has it, and the bytes of its files; None behind the last."""
        counts, first = epoch.plan["batches"][rank], epoch.done[rank]
        left = len(epoch.plan["steps"]) - first
        if epoch.turn[rank] >= len(counts) or left < 1:
            return None
        stop = first + min(left, counts[epoch.turn[rank]])
        inputs: dict[str, bytes] = {}

        def put(data: bytes) -> str:
            path = self.place.put(data)
            inputs[path] = data
            return path

        steps = [self.step(epoch, rank, at, put) for at in range(first, stop)]
        params: dict[str, Any] = {
            "path": str(self.path),
            "epoch": epoch.number,
            "rank": rank,
            "steps": steps,
            "values": self.model.values(epoch.plan, rank, epoch.first + stop),
        }
        if epoch.plan["behind"]:
            last = epoch.plan["steps"][stop - 1]
            params["options"] = self.model.options({**last, "rates": last["rates"][::-1]})
        if (epoch.first + stop) % epoch.plan["sums_every"] == 0:
            params["sums"] = [
                {"piece": n, "slot": "value", "in": put(self.of_piece(epoch, n, stop))}
                for n, piece in enumerate(epoch.pieces)
                if piece["rank"] == rank and self.model.tensors[piece["tensor"]]["role"] == "gradient"
            ]
        return params, inputs

    def of_piece(self, epoch: _Epoch, number: int, at: int) -> bytes:
        """Return the elements of a piece behind so many steps."""
        piece = epoch.pieces[number]
        tensor = self.model.tensors[piece["tensor"]]
        own = list(indices(piece, tensor["shape"]))
        return self.model.cut(piece["tensor"], epoch.states[at][tensor["atom"]], own)

    def step(self, epoch: _Epoch, rank: int, at: int, put: Any) -> dict[str, Any]:
        step = epoch.plan["steps"][at]
        entries = []
        for n, piece in enumerate(epoch.pieces):
            given = self.model.given(epoch.at, at, piece["tensor"]) if piece["rank"] == rank else None
            if given is not None:
                members, data = self.model.entry(given, piece)
                entries.append({"piece": n, **members, "in": put(data)})
        found = {"options": self.model.options(step), "entries": entries}
        return {**found, "skipped": True} if step["skipped"] else found

    def write(self, epoch: _Epoch, rank: int, params: dict[str, Any], inputs: Mapping[str, bytes]) -> None:
        """Have a rank write a batch, and check it."""
        first = epoch.first + epoch.done[rank]
        stop = first + len(params["steps"])
        self.told.append(f"{epoch.actor.label} writes steps {first} to {stop} of rank {rank}")
        key = f"batches/{epoch.number}/{rank}/{first}.batch"
        old = snapshot(self.path)
        folder = (self.path / key).parent
        # Whoever writes the first one makes the folder.
        is_there = folder.exists()
        with watching(folder, f"{first}.batch") if is_there else nullcontext(()) as events:
            result = self.asked(epoch.actor, "writer", "write-batch", params)
        if events:
            self.fail(epoch.actor, "writer", f"{key} was {events[0]}: it has to appear whole")
        self.require_new(epoch.actor, old, {key})
        fault, digest = batch_fault(self.path, params, first, epoch.previous[rank], inputs)
        if fault is None and result["durable_step"] != stop:
            fault = f"the durable step is {stop}, and not {result['durable_step']}"
        if fault is not None:
            self.fail(epoch.actor, "writer", f"write-batch: {fault}")
        epoch.previous[rank] = digest
        epoch.done[rank] += len(params["steps"])
        epoch.turn[rank] += 1

    def refused(
        self, actor: Connection, method: str, params: dict[str, Any], codes: tuple[str, ...], why: str
    ) -> None:
        """Check that a writer refuses what it is asked, and leaves everything as it was."""
        old = snapshot(self.path)
        reply = actor.request(method, params)
        if reply.kind != "error" or reply.body["code"] not in codes:
            self.fail(actor, "writer", f"{method} {why} came to {reply.kind} {reply.body}")
        self.require_new(actor, old, set())

    def end(self, epoch: _Epoch) -> None:
        """Let an epoch end as a crash or damage lets it."""
        end = epoch.plan["end"]
        if end["taken"]:
            self.take(epoch)
        if end["killed"]:
            self.kill(epoch)
        keys = {rank: self.keys(epoch, rank) for rank in range(epoch.plan["ranks"])}
        for rank, count in enumerate(end["lost"]):
            for key in keys[rank][::-1][:count]:
                self.told.append(f"{key} is lost")
                (self.path / keys[rank].pop()).unlink()
        if end["torn"] is not None and keys[end["torn"]]:
            file = self.path / keys[end["torn"]][-1]
            self.told.append(f"{file.name} of rank {end['torn']} is torn")
            file.write_bytes(file.read_bytes()[: file.stat().st_size * (1 + self.plan["seed"] % 7) // 8])
        if end["gap"] is not None:
            self.remove_early(epoch, *end["gap"])
        if end["debris"]:
            name = secrets.token_hex(16)
            (self.path / "epochs" / f".{name}").write_bytes(b"{")
            (self.path / "epochs" / f"{epoch.number + 1}.json.partial").write_bytes(b"{")

    def remove_early(self, epoch: _Epoch, which: int, rank: int) -> None:
        """Remove a batch of a rank: the first or second, or, with -1, the last that counts of the epoch before."""
        log = UpdateLog(self.path)
        number = max(0, epoch.number - (which < 0))
        firsts = log.firsts.get((number, rank), [])
        if which < 0:
            firsts = [first for first in firsts if first < epoch.first]
        if len(firsts) > max(0, which):
            key = f"batches/{number}/{rank}/{firsts[which]}.batch"
            self.told.append(f"{key} is removed")
            (self.path / key).unlink()

    def keys(self, epoch: _Epoch, rank: int) -> list[str]:
        """Return the batches of a rank that are there."""
        firsts = UpdateLog(self.path).firsts.get((epoch.number, rank), [])
        return [f"batches/{epoch.number}/{rank}/{first}.batch" for first in firsts]

    def next_batch(self, epoch: _Epoch, rank: int) -> tuple[dict[str, Any], str] | None:
        """Return one batch more of a rank, and its key; None where the rank writes no more."""
        at = epoch.done[rank]
        if epoch.turn[rank] < 0:
            return None
        step = self.step(epoch, rank, at % len(epoch.plan["steps"]), self.place.put)
        params = {
            "path": str(self.path), "epoch": epoch.number, "rank": rank, "steps": [step], "values": {},
        }  # fmt: skip
        return params, f"batches/{epoch.number}/{rank}/{epoch.first + at}.batch"

    def take(self, epoch: _Epoch) -> None:
        """Put an object where the next batch of a rank goes: it stays, and the batch is refused."""
        asked = self.next_batch(epoch, 0)
        if asked is None:
            return
        params, key = asked
        file = self.path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"UCPBATCH of another process")
        self.told.append(f"{key} is taken")
        self.refused(epoch.actor, "write-batch", params, ("UCP-E-EXISTS",), f"where {key} is there")
        file.unlink()
        epoch.turn[0] = -1  # the rank writes no more

    def kill(self, epoch: _Epoch) -> None:
        """Kill a writer while it writes a batch: it is there and whole, or not there."""
        rank = epoch.plan["ranks"] - 1
        asked = self.next_batch(epoch, rank)
        if asked is None:
            return
        params, key = asked
        old = snapshot(self.path)
        self.told.append(f"{epoch.actor.label} is killed while it writes {key}")
        epoch.actor.send_and_kill("write-batch", params, _DELAYS[self.plan["seed"] % len(_DELAYS)])
        now = snapshot(self.path)
        if any(now.get(name) != data for name, data in old.items()):
            self.fail(epoch.actor, "writer", "killed, it has changed or removed an object")
        log = UpdateLog(self.path)
        if key in now:
            inputs = {entry["in"]: Path(entry["in"]).read_bytes() for entry in params["steps"][0]["entries"]}
            first = epoch.first + epoch.done[rank]
            fault, _ = batch_fault(self.path, params, first, epoch.previous[rank], inputs)
            if fault is not None:
                self.fail(epoch.actor, "writer", f"killed, it has left a batch: {fault}")
        if sum(map(len, log.firsts.values())) > sum(name.endswith(".batch") for name in old) + 1:
            self.fail(epoch.actor, "writer", "killed, it has left objects that nobody asked for")
        epoch.turn = [-1] * epoch.plan["ranks"]

    def tried_late(self, before: _Epoch, epoch: _Epoch) -> None:
        """Have the epoch before go on, and begin one that was planned before this one was there."""
        end = before.plan["end"]
        if end["zombie"] and before.turn[-1] >= 0:
            asked = self.next_batch(before, before.plan["ranks"] - 1)
            if asked is not None:
                params, _ = asked
                self.told.append(f"{before.actor.label} goes on with epoch {before.number}")
                why = f"of epoch {before.number}, behind which epoch {epoch.number} has begun,"
                self.refused(before.actor, "write-batch", params, ("UCP-E-FENCED",), why)
        if end["late"]:
            document = self.model.document(epoch.plan)
            params = {
                "path": str(self.path), "after": before.number, "epoch": epoch.number,
                "first_step": epoch.first, **document,
            }  # fmt: skip
            codes: tuple[str, ...] = ("UCP-E-FENCED", "UCP-E-EXISTS")
            # Where a recovery went back before it, it breaks UCP-D-153 as well.
            codes += ("UCP-E-LOG",) if epoch.first < before.first else ()
            why = f"of epoch {epoch.number}, which has begun,"
            self.refused(before.actor, "begin-epoch", params, codes, why)
            first = {**params, "after": None}
            del first["epoch"]
            self.refused(
                before.actor, "begin-epoch", first, codes, "without another, of a log that has epochs,"
            )

    def compare_with_the_job(self, epoch: _Epoch, found: Recovered) -> None:
        """Compare what the oracle recovers with the state that the job was in; residuals may be unknown."""
        if found.epoch != epoch.number:
            return
        # A batch that was under way when its writer was killed may be there, behind the steps of the plan.
        count = len(epoch.plan["steps"])
        while len(epoch.states) <= found.step - epoch.first:
            at = (len(epoch.states) - 1) % count
            epoch.states.append(self.model.after(epoch.at, at, epoch.states[-1]))
        state = epoch.states[found.step - epoch.first]
        residuals = {one["atom"] for one in self.model.tensors if one["role"] == "residual"}
        if any(data != state[name] for name, data in found.values.items() if name not in residuals):
            raise AssertionError(f"the oracle recovers another state than the job had: {self.told}")
