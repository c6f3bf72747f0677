"""Races of update logs: of two processes that begin an epoch or write a batch at the same time, one does."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from ucp_conformance.connection import Connection
from ucp_conformance.log_races import REQUIREMENTS, run_races
from ucp_conformance.workplace import snapshot

from tests.conformance.suite import CONFORMANCE, NODE, REFERENCE, ROOT, ignore
from tests.spec.document import requirements
from tests.update_log.logs import LogMaker
from ucpformat.update_log.documents import LoggedTensor, LogPiece
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.validation import log_problems

sys.path.append(str(CONFORMANCE / "mutants"))
from defects import load, planted

pytestmark = [
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here"),
    pytest.mark.distributed,
]
RANKS = 30
# Both get a path and a letter, and then numbers of ranks; for each they write a batch, and say what came of it.
WORKERS = {
    "python": [
        sys.executable,
        "-c",
        """
import sys
from ucpformat.errors import UcpError
from ucpformat.update_log.batch_writer import BatchWriter
from ucpformat.update_log.drafts import BatchDraft, StepDraft
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.reading import StoredLog
path, name = sys.argv[1:]
with StoredLog(path) as log:
    epoch = log.epoch(0)
place = LogPlace(path)
print("ready", flush=True)
for line in sys.stdin:
    writer = BatchWriter(place, epoch.epoch, epoch.digest, int(line), most_bytes=1 << 20)
    try:
        writer.put(BatchDraft(0, [StepDraft(options=({"lr": 0.5},))], {"by": name}, []))
        writer.drain()
        print("written", flush=True)
    except UcpError as refusal:
        print(refusal.code, flush=True)
""",
    ],
    "node": [
        "node",
        "--input-type=module",
        "-e",
        f"""
import {{createInterface}} from 'node:readline';
import {{readFileSync}} from 'node:fs';
import {{DirectoryLogSink}} from '{ROOT}/js/node/log-sink.mjs';
import {{EpochWriter}} from '{ROOT}/js/lib/log-writer.mjs';
import {{epochOf}} from '{ROOT}/js/lib/log-documents.mjs';
const [path, name] = process.argv.slice(1);
const {{id}} = JSON.parse(readFileSync(`${{path}}/log.json`));
const writer = new EpochWriter(new DirectoryLogSink(path), epochOf(readFileSync(`${{path}}/epochs/0.json`), 0, id));
console.log('ready');
for await (const line of createInterface({{input: process.stdin}})) {{
  try {{
    writer.write(Number(line), {{steps: [{{options: [{{lr: 0.5}}], entries: []}}], values: {{by: name}}}});
    console.log('written');
  }} catch (error) {{
    console.log(error.code ?? String(error));
  }}
}}
""",
    ],
}


def test_one_of_two_begins_an_epoch(connect: list[Connection]) -> None:
    """UCP-W-036, UCP-W-038, UCP-W-039."""
    connect += [
        Connection(REFERENCE, label="python", timeout=60.0),
        Connection(NODE, label="node", timeout=60.0),
    ]
    found = {result.id: result for result in run_races(connect, ignore, rounds=8, seed_=0)}
    pairs = [("python", "python"), ("python", "node"), ("node", "python"), ("node", "node")]
    assert found.keys() == {f"logs/{one}-races-{other}:writer" for one, other in pairs}
    assert {result.outcome for result in found.values()} == {"pass"}, [one.detail for one in found.values()]
    assert set(REQUIREMENTS) <= {name for name, _ in requirements()}


@pytest.mark.parametrize(
    ("name", "why"),
    [("log-epoch-written-over", "written over the other's"), ("log-not-fenced", "behind an epoch")],
)
def test_who_races_wrongly_is_blamed(connect: list[Connection], tmp_path: Path, name: str, why: str) -> None:
    """`make mutants` has one that looks first, and is found by nothing else; and takes longer to find."""
    (defect,) = (one for one in load("node") if one.name == name)
    planted(defect, tmp_path)
    wrong = f"node {tmp_path / 'conformance/drivers/node/driver.mjs'}"
    connect += [Connection(NODE, label="right", timeout=60.0), Connection(wrong, label="wrong", timeout=60.0)]
    found = {result.id: result for result in run_races(connect, ignore, rounds=60, seed_=0)}
    assert found["logs/right-races-right:writer"].outcome == "pass"
    assert found["logs/right-races-wrong:writer"].outcome == "pass"
    for other in ("wrong", "right"):
        result = found[f"logs/wrong-races-{other}:writer"]
        assert (result.outcome, why in result.detail) == ("fail", True), result.detail


@pytest.mark.parametrize("pair", ["python python", "node node", "python node"])
def test_one_of_two_writes_a_batch(tmp_path: Path, pair: str) -> None:
    """UCP-W-036: no driver is asked for this, since none writes batches of an epoch that it has not begun."""
    maker = LogMaker(tmp_path / "updates.ucplog")
    tensor = LoggedTensor("w", "gradient", "float32", (RANKS,))
    pieces = tuple(LogPiece(0, rank, (rank,), (1,)) for rank in range(RANKS))
    maker.epoch(ranks=RANKS, tensors=(tensor,), pieces=pieces)
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [*WORKERS[kind], str(maker.path), name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for kind, name in zip(pair.split(), "ab", strict=True)
        ]
        pipes = [(racer.stdin, racer.stdout) for racer in racers if racer.stdin and racer.stdout]
        assert [said.readline() for _, said in pipes] == ["ready\n"] * 2
        won = []
        for rank in range(RANKS):
            # Who is told first is told last the next time.
            for told, _ in pipes[:: -1 if rank % 2 else 1]:
                told.write(f"{rank}\n")
                told.flush()
            said = [said.readline().strip() for _, said in pipes]
            assert sorted(said) == ["UCP-E-EXISTS", "written"], f"rank {rank}: {said}"
            won.append("ab"[said.index("written")])
        for told, _ in pipes:
            told.close()
    assert log_problems(str(maker.path)) == []
    with StoredLog(str(maker.path)) as log:
        batches = list(itertools.chain.from_iterable(log.chain(0, rank).batches for rank in range(RANKS)))
    assert [batch.header.values["by"] for batch in batches] == won
    keys = {"log.json", "epochs/0.json", *(f"batches/0/{rank}/0.batch" for rank in range(RANKS))}
    assert snapshot(maker.path).keys() == keys
    assert not LogPlace(str(maker.path)).debris(0.0)
