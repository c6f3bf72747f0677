"""Lives of update logs: implementations go on from each other, and who is wrong is blamed and shrunk to little."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from ucp_conformance import generated
from ucp_conformance.connection import Connection
from ucp_conformance.generated import replay, run_lives
from ucp_conformance.log_sequences import REQUIREMENTS
from ucp_conformance.resources import protocol_validator
from ucp_conformance.results import BAD, Result, badge, classes

from tests.conformance.suite import CONFORMANCE, NODE, ORACLE, REFERENCE, ROOT, ignore, ucp_conformance
from tests.spec.document import requirements

sys.path.append(str(CONFORMANCE / "mutants"))
from defects import load, planted

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")


def test_each_implementation_goes_on_from_the_other(connect: list[Connection]) -> None:
    connect += [
        Connection(REFERENCE, label="python", timeout=60.0),
        Connection(NODE, label="node", timeout=60.0),
    ]
    found = {result.id: result for result in run_lives(connect, ignore, examples=6, seed_=0)}
    pairs = [(one, other) for one in ("python", "node") for other in ("python", "node")]
    assert found.keys() == {f"logs/{a}-to-{b}:{role}" for a, b in pairs for role in ("writer", "reader")}
    assert {result.outcome for result in found.values()} == {"pass"}, [
        result.detail for result in found.values() if result.outcome != "pass"
    ]


def test_who_goes_on_wrongly_is_blamed_and_the_case_runs_again(
    connect: list[Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of the pair, as a writer: it is neither of the halves that every pair has."""
    monkeypatch.setattr(generated, "SHRINKING_S", 2.0)
    (defect,) = (one for one in load("node") if one.name == "log-skip-forgotten")
    planted(defect, tmp_path)
    wrong = f"node {tmp_path / 'conformance/drivers/node/driver.mjs'}"
    connect += [Connection(NODE, label="right", timeout=60.0), Connection(wrong, label="wrong", timeout=60.0)]
    found = {result.id: result for result in run_lives(connect, ignore, examples=20, seed_=0)}
    bad = {name for name, result in found.items() if result.outcome in BAD}
    assert bad == {
        "logs/wrong-to-wrong:writer",
        "logs/right-to-wrong:writer-wrong",
        "logs/wrong-to-right:writer",
    }
    case = found["logs/right-to-wrong:writer-wrong"].case
    assert case is not None
    protocol_validator("exchange").validate(case)
    assert len(case["plan"]["epochs"]) >= 2
    again = replay(case, *connect)
    assert again is not None
    assert (again.blamed, again.role) == ("wrong", "writer")
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case))
    done = ucp_conformance("promote", file, "name", "--vectors", tmp_path)
    assert done.returncode == 2
    assert "life of a log" in done.stderr


def test_a_driver_that_reads_alone_is_recovered_by_and_says_so(
    connect: list[Connection], tmp_path: Path
) -> None:
    program = (CONFORMANCE / "drivers/node/driver.mjs").read_text()
    assert program.count("'process-images', 'update-log', 'weight-versions'],\n    compressors") == 1
    folder = tmp_path / "conformance/drivers/node"
    folder.mkdir(parents=True)
    (tmp_path / "js").symlink_to(ROOT / "js")
    (folder / "driver.mjs").write_text(
        program.replace(
            "'process-images', 'update-log', 'weight-versions'],\n    compressors", "],\n    compressors"
        )
    )
    connect += [
        Connection(f"node {folder / 'driver.mjs'}", label="reader", timeout=60.0),
        Connection(NODE, label="both", timeout=60.0),
    ]
    found = {result.id: result for result in run_lives(connect, ignore, examples=3, seed_=0)}
    assert found["logs/reader:writer"].outcome == "unclaimed"
    assert found["logs/both-to-reader:reader"].outcome == "pass"
    assert "logs/reader-to-both:writer" not in found
    both = [
        Result("s", label, "reader", "full", "pass", features=["update-log"]) for label in ("reader", "both")
    ]
    for label, words in (("reader", "+update-log to read"), ("both", "+update-log")):
        earned = classes([*both, *found.values()], label, ["reader", "writer"])
        assert badge(earned)["message"] == f"no class {words}"


def test_a_driver_that_writes_no_logs_lives_none(connect: list[Connection]) -> None:
    connect.append(Connection(ORACLE, label="oracle", timeout=60.0))
    assert list(run_lives(connect, ignore, examples=3, seed_=0)) == []
    done = ucp_conformance("run", "--lives", "2", "--driver", f"oracle={ORACLE}")
    assert done.returncode == 2
    assert "nobody logs" in done.stderr


def test_lives_alone_earn_nothing(tmp_path: Path) -> None:
    done = ucp_conformance("run", "--lives", "2", "--report", tmp_path, "--driver", f"node={NODE}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert {result["id"].partition("/")[0] for result in report["results"]} == {"logs", "protocol"}
    assert report["drivers"][0]["badge"]["message"] == "no class"
    done = ucp_conformance("run", "--lives", "2", "--only", "good", "--driver", f"node={NODE}")
    assert done.returncode == 2
    assert "--lives" in done.stderr


def test_lives_hold_requirements_that_exist() -> None:
    assert set(REQUIREMENTS) <= {name for name, _ in requirements()}
