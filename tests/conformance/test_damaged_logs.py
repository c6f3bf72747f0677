"""Logs as crashes and damage leave them: both implementations and the oracle recover the same of them, or refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ucp_conformance.connection import Connection
from ucp_conformance.drafting import write_files
from ucp_conformance.oracle.examine import examine
from ucp_conformance.oracle.log_replay import recovered
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.update_logs import UpdateLog
from ucp_conformance.vectors import all_vectors

from tests.conformance.suite import CONFORMANCE, REFERENCE

LOG = "updates.ucplog"
LOGS = [
    vector
    for vector in all_vectors()
    if vector.id in ("good/parents/log", "good/logs/sums", "good/logs/fork")
]
ROUNDS = 60

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")


@pytest.fixture(scope="module")
def drivers() -> Iterator[list[Connection]]:
    node = f"node {CONFORMANCE / 'drivers' / 'node' / 'driver.mjs'}"
    found = [
        Connection(command, label=name, timeout=60.0)
        for name, command in (("python", REFERENCE), ("node", node))
    ]
    try:
        yield found
    finally:
        for connection in found:
            connection.kill()


def damaged(random: Random, files: dict[str, bytes]) -> dict[str, bytes]:
    """One or two of the objects of the log cut off, changed, removed, exchanged or copied."""
    found = dict(files)
    for _ in range(random.choice([1, 1, 2])):
        keys = sorted(key for key in found if key.startswith(f"{LOG}/"))
        key = random.choice(keys)
        data = found[key]
        match random.choice(["cut", "cut", "flip", "remove", "remove", "exchange", "copy"]):
            case "cut":
                found[key] = data[: random.randrange(len(data) + 1)]
            case "flip" if data:
                place = random.randrange(len(data))
                found[key] = (
                    data[:place] + bytes([data[place] ^ 1 << random.randrange(8)]) + data[place + 1 :]
                )
            case "remove":
                del found[key]
            case "exchange":
                other = random.choice(keys)
                found[key], found[other] = found[other], data
            case "copy":
                epoch, rank, step = random.randrange(3), random.randrange(3), random.randrange(9)
                found[f"{LOG}/batches/{epoch}/{rank}/{step}.batch"] = data
    return found


def of_oracle(run: Path, *, allow_loss: bool) -> Any:
    """What the oracle makes of a run: the code of its refusal, or the listing and where the recovery ends."""
    try:
        log = UpdateLog(run / LOG)
        found = log.described()
        checkpoint = next(path for path in run.iterdir() if path.suffix == ".ucp")
        logical = examine(checkpoint).logical
        recovery = recovered(log, logical, allow_loss=allow_loss)
    except RefusalError as refusal:
        return refusal.problem.code
    return {**found, "recovery": {"step": recovery.step, "exactness": recovery.exactness}}, recovery.values


def of_driver(driver: Connection, run: Path, *, allow_loss: bool, out: Path) -> Any:
    checkpoint = next(path for path in run.iterdir() if path.suffix == ".ucp")
    outs = [{"atom": atom, "out": str(out / atom)} for atom in ("bias", "emb", "mean", "w")]
    params = {"path": str(run / LOG), "checkpoint": str(checkpoint), "outs": outs, "allow_loss": allow_loss}
    reply = driver.request("log", params)
    if reply.kind == "error":
        return reply.body["code"]
    assert reply.kind == "result", reply.body
    return reply.body, {one["atom"]: Path(one["out"]).read_bytes() for one in outs}


@pytest.mark.parametrize("vector", LOGS, ids=lambda vector: vector.id)
def test_what_is_recovered_of_a_damaged_log(vector: Any, drivers: list[Connection], tmp_path: Path) -> None:
    random = Random(vector.id)
    for number in range(ROUNDS):
        run = tmp_path / str(number)
        files = damaged(random, vector.checkpoint)
        write_files(files, run)
        (run / LOG).mkdir(exist_ok=True)
        allow_loss = random.random() < 0.3
        wanted = of_oracle(run, allow_loss=allow_loss)
        for driver in drivers:
            out = tmp_path / f"{number}-{driver.label}"
            out.mkdir()
            found = of_driver(driver, run, allow_loss=allow_loss, out=out)
            assert found == wanted, (number, driver.label, json.dumps(sorted(files)))
        params = {"path": str(run / LOG), "level": "integrity"}
        replies = [driver.request("validate", params).body["problems"] for driver in drivers]
        codes = [{problem["code"] for problem in found} for found in replies]
        # Behind an epoch that another one is wrong with, the oracle looks at nothing.
        assert codes[0] == codes[1], number
        assert {problem.code for problem in examine(run / LOG).problems} <= codes[0], number
