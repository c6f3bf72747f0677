"""Whole runs: the oracle's driver and the reference, reports, replay, promotion, expected failures."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ucp_conformance.connection import Connection
from ucp_conformance.exchange import refusal_of
from ucp_conformance.judge import PASS, judge
from ucp_conformance.profiles import PROFILES
from ucp_conformance.resources import protocol_validator
from ucp_conformance.results import Result, apply_expected, badge, classes, read_expected
from ucp_conformance.vectors import read_vector

from tests.conformance.suite import CONFORMANCE, ORACLE, REFERENCE, TEMPLATE, mutant, ucp_conformance
from tests.documentation.markdown import run_by

# One worker for the tests of one run, so that it is made once.
of_the_reference = pytest.mark.xdist_group("conformance-reference")


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reports of a quick run of the reference against the oracle's driver."""
    folder = tmp_path_factory.mktemp("reference")
    known = Path(__file__).with_name("known.toml")
    done = ucp_conformance(
        "run",
        "--profile",
        "quick",
        "--report",
        folder,
        "--xfail",
        known,
        "--driver",
        f"reference={REFERENCE}",
    )
    (folder / "exit").write_text(f"{done.returncode}")
    (folder / "stdout").write_text(done.stdout + done.stderr)
    return folder


@of_the_reference
def test_the_reference_passes_but_for_what_is_known(reference: Path) -> None:
    assert (reference / "exit").read_text() == "0", (reference / "stdout").read_text()[-6000:]


@of_the_reference
def test_reports_are_whole(reference: Path) -> None:
    report = json.loads((reference / "report.json").read_bytes())
    protocol_validator("report").validate(report)
    lines = [json.loads(line) for line in (reference / "results.ndjson").read_text().splitlines()]
    assert [next(iter(line)) for line in (lines[0], lines[-1])] == ["header", "footer"]
    assert lines[-1]["footer"]["results"] == len(lines) - 2 == len(report["results"])
    assert "| reference |" in (reference / "summary.md").read_text()
    assert "generated/reference-to-reference" in (reference / "results.ndjson").read_text()
    assert "UCP-D-092" in (reference / "index.html").read_text()
    assert set(json.loads((reference / "badge-reference.json").read_bytes())) == {
        "schemaVersion", "label", "message", "color",
    }  # fmt: skip


def test_the_oracle_s_driver_earns_full_without_the_reference(tmp_path: Path) -> None:
    """So what catches the mutants that derive from it spares the driver that they derive from."""
    profile = "default" if os.environ.get("UCP_HYPOTHESIS_PROFILE") in ("long", "nightly") else "quick"
    done = ucp_conformance("run", "--profile", profile, "--report", tmp_path, "--driver", f"oracle={ORACLE}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    message = json.loads((tmp_path / "badge-oracle.json").read_bytes())["message"]
    assert message == "Full validator/reader/writer/rewriter"


def test_the_template_talks_and_earns_nothing(tmp_path: Path) -> None:
    arguments = ["--driver", f"mine={TEMPLATE}", "--only", "good/basic", "--report", str(tmp_path)]
    done = ucp_conformance("run", *arguments)
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert done.returncode == 0
    assert report["totals"].keys() == {"pass", "unclaimed", "unsupported"}
    assert json.loads((tmp_path / "badge-mine.json").read_bytes())["message"] == "no class"


def test_the_commands_of_the_first_page_run_as_they_stand(tmp_path: Path) -> None:
    """From a folder with a copy of the template, which fails nothing, so that a red case means something."""
    shutil.copy(CONFORMANCE / "drivers" / "template" / "driver.py", tmp_path)
    blocks = run_by("tests/conformance/test_runs.py", "conformance/GETTING_STARTED.md")
    lines = [line for block in blocks for line in block.text.splitlines()]
    commands = [line.removeprefix("ucp-conformance ") for line in lines if not line.startswith("cp ")]
    assert len(commands) >= 5
    for command in commands:
        words = [word.replace("=python ", f"={sys.executable} ") for word in shlex.split(command)]
        words += [] if "--only" in words else ["--profile", "quick"]
        done = ucp_conformance(*words, cwd=tmp_path)
        assert done.returncode == 0, f"{command}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    assert (tmp_path / "report" / "index.html").exists()
    report = json.loads((tmp_path / "report" / "report.json").read_bytes())
    assert report["totals"].keys() == {"pass", "unclaimed", "unsupported"}
    assert len(report["results"]) > 1000, "the whole run"


def test_the_list_of_expected_failures_is_read(tmp_path: Path) -> None:
    (block,) = run_by("tests/conformance/test_runs.py", "conformance/CLASSES.md")
    (tmp_path / "known.toml").write_text(block.text)
    (entry,) = read_expected(tmp_path / "known.toml")
    assert entry["driver"] == "mine"


def test_a_part_of_the_suite_earns_nothing(tmp_path: Path) -> None:
    arguments = ["--driver", f"oracle={ORACLE}", "--only", "good/basic", "--report", str(tmp_path)]
    done = ucp_conformance("run", *arguments)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_bytes())
    assert report["totals"].keys() == {"pass"}
    assert report["drivers"][0]["badge"]["message"] == "no class"


def test_a_driver_that_cannot_be_started_fails_the_run(tmp_path: Path) -> None:
    done = ucp_conformance("run", "--driver", "none=/nowhere/driver", "--report", tmp_path)
    assert done.returncode == 1
    assert "protocol/hello" in (tmp_path / "summary.md").read_text()


PLAN = {
    "storage": "packed", "chunk_bytes": 16, "dtype": "uint8", "shape": [3], "data": "counter", "compressor": None,
    "source": None, "rewrite": None,
    "target": {
        "mesh": {"axes": [{"name": "a", "size": 2}]},
        "steps": [{"kind": "shard", "axis": "a", "dim": 0, "rule": "ceil"}],
    },
}  # fmt: skip


def test_a_case_is_replayed_and_promoted(tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"kind": "exchange", "writer": "a", "reader": "b", "plan": PLAN}))
    assert ucp_conformance("replay", file, "--driver", f"o={ORACLE}").returncode == 0
    found = ucp_conformance(
        "replay", file, "--driver", f"o={ORACLE}", "--driver", f"m={mutant('floor-division')}"
    )
    assert found.returncode == 1
    assert "reader m" in found.stdout
    done = ucp_conformance("promote", file, "three-over-two", "--vectors", tmp_path / "vectors")
    assert done.returncode == 0, done.stderr
    case = json.loads((tmp_path / "vectors/good/promoted/three-over-two.json").read_bytes())
    protocol_validator("vector").validate(case)
    assert read_vector(case, None).expected["local-1.bin"] == b"\3"


PENDING = {
    **PLAN,
    "dtype": "float32",
    "source": {
        "mesh": {"axes": [{"name": "a", "size": 2}]},
        "steps": [{"kind": "partial", "axis": "a", "reduce": "sum"}],
    },
}
ENTRIES = {
    **PLAN,
    "shape": [2, 2],
    "source": {
        "mesh": {"axes": [{"name": "a", "size": 2}]},
        "steps": [{"kind": "local", "resize": "refuse"}],
    },
}


@pytest.mark.parametrize(
    "plan", [PENDING, ENTRIES, {**PLAN, "target": PENDING["source"], "dtype": "float32"}]
)
def test_steps_about_values_are_exchanged_and_promoted(plan: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"kind": "exchange", "writer": "a", "reader": "b", "plan": plan}))
    assert ucp_conformance("replay", file, "--driver", f"o={ORACLE}").returncode == 0
    done = ucp_conformance("promote", file, "one", "--vectors", tmp_path / "vectors")
    assert done.returncode == 0, done.stderr
    connection = Connection(ORACLE, label="o", timeout=60.0)
    try:
        promoted = read_vector(json.loads((tmp_path / "vectors/good/promoted/one.json").read_bytes()), None)
        for check in promoted.case["checks"]:
            assert judge(connection, promoted, check)[0] == PASS, check
    finally:
        connection.kill()


def test_what_is_to_be_refused_is_known() -> None:
    for plan, code in ((ENTRIES, "UCP-E-MISMATCH"), ({**PLAN, "target": PENDING["source"]}, "UCP-E-LAYOUT")):
        assert refusal_of(plan) == code
    assert refusal_of(PLAN) is None


@pytest.mark.wheel
@pytest.mark.xdist_group("wheel")
def test_the_wheel_runs_alone(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(CONFORMANCE),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = "import sys; sys.modules['ucpformat'] = None; sys.path.insert(0, sys.argv.pop(1))\n"
    program += "import ucp_conformance.cli as cli; assert 'installed' in cli.__file__; cli.main()"
    template = tmp_path / "installed/ucp_conformance/_data/drivers/template/driver.py"
    options = [
        "run",
        "--driver",
        f"mine={sys.executable} {template}",
        "--only",
        "good/",
        "--report",
        str(tmp_path / "r"),
    ]
    command = [sys.executable, "-I", "-c", program, str(tmp_path / "installed"), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "r/report.json").read_bytes())["totals"]["unsupported"] > 50


def results(*outcomes: tuple[str, str]) -> list[Result]:
    return [Result(f"c{n}", "d", "reader", level, outcome) for n, (level, outcome) in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("found", "level"),
    [
        ([("inspect", "pass"), ("dense", "pass")], "dense"),
        ([("inspect", "pass"), ("dense", "fail")], "inspect"),
        ([("inspect", "pass"), ("dense", "xfail")], "inspect"),
        ([("inspect", "pass"), ("dense", "unsupported")], "inspect"),
        ([("inspect", "fail"), ("dense", "pass")], None),
    ],
)
def test_a_class_takes_every_case_at_or_below_its_level(
    found: list[tuple[str, str]], level: str | None
) -> None:
    assert classes(results(*found), "d", ["reader"])["reader"] == level


def test_badges_state_the_class_in_words() -> None:
    earned = {"validator": "full", "reader": "full", "writer": "dense", "rewriter": None, "+zstd": True}
    assert badge(earned)["message"] == "Full validator/reader, Dense writer +zstd"


@pytest.mark.parametrize(
    ("read", "written", "words"),
    [
        ("pass", "pass", " +zstd"),
        ("pass", "unclaimed", " +zstd to read"),
        ("pass", "fail", ""),
        ("fail", "unclaimed", ""),
        ("unclaimed", "unclaimed", ""),
    ],
)
def test_a_compressor_that_is_only_read_is_named_so(read: str, written: str, words: str) -> None:
    found = [
        Result(f"z{n}", "d", role, "dense", outcome, features=["zstd"])
        for n, (role, outcome) in enumerate(
            [("validator", "pass"), ("reader", read), ("writer", "unclaimed"), ("rewriter", written)]
        )
        if (role, written) != ("writer", "pass")
    ]
    earned = classes([*results(("dense", "pass")), *found], "d", ["reader", "rewriter"])
    assert badge(earned)["message"] == f"Dense reader{words}"


def of_profiles(*found: tuple[str, str, str]) -> list[Result]:
    """Results of a reader: profiles, level and outcome of each."""
    return [
        Result(f"p{n}", "d", "reader", level, outcome, profiles=profiles.split())
        for n, (profiles, level, outcome) in enumerate(found)
    ]


def test_core_is_enough_for_reshard_and_the_other_profiles_are_named() -> None:
    found = of_profiles(
        ("core", "reshard", "pass"),
        ("core views", "full", "pass"),
        ("core views buffers", "full", "unclaimed"),
        ("core ragged", "full", "fail"),
    )
    earned = classes(found, "d", ["reader"], ["core", "views", "ragged"])
    assert (earned["reader"], earned["+views"], earned["+buffers"], earned["+ragged"]) == (
        "reshard", True, False, False,
    )  # fmt: skip
    assert badge(earned)["message"] == "Reshard reader +views"


def test_a_profile_that_is_not_claimed_keeps_from_full_and_core_from_reshard() -> None:
    views = of_profiles(("core", "reshard", "pass"), ("core views", "full", "unclaimed"))
    assert classes(views, "d", ["reader"], ["core"])["reader"] == "reshard"
    none = [*results(("dense", "pass")), *of_profiles(("core", "reshard", "unclaimed"))]
    assert classes(none, "d", ["reader"], [])["reader"] == "dense"


def test_full_takes_every_profile_and_names_none() -> None:
    found = of_profiles(("core", "reshard", "pass"), ("core views", "full", "pass"))
    earned = classes(found, "d", ["reader"], list(PROFILES))
    assert earned["+views"] is True
    assert badge(earned)["message"] == "Full reader"


def test_checks_go_to_drivers_that_claim_their_profiles(tmp_path: Path) -> None:
    """The oracle with one profile less is asked nothing of it, and stays green."""
    program = "from oracle_driver import *; import oracle_driver; "
    program += "hello = OracleDriver.hello; "
    program += "OracleDriver.hello = lambda self, p: {**hello(self, p), 'profiles': ['core']}; OracleDriver().serve()"
    folder = CONFORMANCE / "mutants"
    command = shlex.join(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {program}"]
    )
    done = ucp_conformance(
        "run", "--driver", f"core={command}", "--only", "good/layouts/", "--report", tmp_path
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for result in json.loads((tmp_path / "report.json").read_bytes())["results"]:
        beyond = set(result["profiles"]) - {"core"}
        assert result["outcome"] == ("unclaimed" if beyond else "pass"), result
        assert (result["level"] == "full") == bool(beyond) or not result["profiles"]


def test_expected_failures_need_reasons_and_must_fail(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[[expected]]\nid = "c0"\nreason = "not done yet"\n')
    expected = read_expected(file)
    assert apply_expected(results(("dense", "fail")), expected)[0].outcome == "xfail"
    assert apply_expected(results(("dense", "pass")), expected)[0].outcome == "xpass"
    file.write_text('[[expected]]\nid = "c0"\nreason = "later"\n')
    with pytest.raises(ValueError, match="reason"):
        read_expected(file)
