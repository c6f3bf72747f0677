"""The vectors: well-formed, made by the generator, judged by the oracle as they say, complete."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ucp_conformance import exchange, stateful
from ucp_conformance.judge import at_matches
from ucp_conformance.oracle.examine import examine
from ucp_conformance.oracle.levels import at_level
from ucp_conformance.resources import protocol_validator, specification, untestable_file, vectors_folder
from ucp_conformance.static import load_cases
from ucp_conformance.workplace import Workplace

from tests.conformance.suite import CONFORMANCE, files
from tests.spec.document import BESIDE, requirements

CASES = {case["id"]: (folder, case) for folder, case in load_cases()}


def test_every_case_meets_its_schema_and_stands_where_its_id_says() -> None:
    assert len(CASES) > 500
    for name, (folder, case) in CASES.items():
        protocol_validator("case").validate(case)
        assert folder == vectors_folder() / name


def test_names_of_checks_are_unique_within_a_case() -> None:
    for _, case in CASES.values():
        names = [check["name"] for check in case["checks"]]
        assert len(set(names)) == len(names)


def test_every_bad_case_has_a_good_parent() -> None:
    bad = [case for name, (_, case) in CASES.items() if name.startswith("bad/")]
    assert len(bad) > 250
    assert {case["mutates"] for case in bad} <= CASES.keys()


def test_the_generator_makes_exactly_these_vectors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "generate", str(tmp_path / "vectors")]
    subprocess.run(command, check=True, cwd=CONFORMANCE, capture_output=True)
    made, kept = files(tmp_path / "vectors"), files(vectors_folder())
    kept = {name: data for name, data in kept.items() if not name.startswith("good/promoted/")}
    assert made.keys() == kept.keys()
    assert [name for name, data in made.items() if kept[name] != data] == []
    for name in ("lowering.json", "LOWERING.md"):
        assert (tmp_path / name).read_bytes() == (CONFORMANCE / name).read_bytes(), name


def verdict(folder: Path, case: dict[str, Any], wanted: dict[str, Any], level: str) -> str:
    """What the oracle's findings lack of what a case expects; empty where they agree."""
    place = Workplace()
    try:
        problems = examine(place.checkpoint(folder / "checkpoint", case.get("setup", []))).problems
        problems = at_level(problems, level)
    finally:
        place.close()
    codes = [problem.code for problem in problems]
    if not wanted["codes"] and codes:
        return f"{codes} in a good one"
    if wanted["codes"] and (not codes or codes[0] not in wanted["codes"]):
        return f"{codes} and not {wanted['codes']}"
    if wanted.get("every") and set(codes) != set(wanted["codes"]):
        return f"{codes} and not all of {wanted['codes']}"
    if set(codes) & set(wanted.get("never", ())):
        return f"{codes}, of which some are ruled out: {wanted['never']}"
    if not wanted["also"] and not set(codes) <= set(wanted["codes"]):
        return f"{codes}, more than {wanted['codes']}"
    if "at" in wanted and not any(at_matches(problem.at, wanted["at"]) for problem in problems):
        return f"{[problem.at for problem in problems]} and not {wanted['at']}"
    return ""


def test_the_oracle_finds_in_every_vector_what_the_case_expects() -> None:
    wrong = {
        name: found
        for name, (folder, case) in CASES.items()
        for check in case["checks"]
        if check["op"] == "validate"
        and (found := verdict(folder, case, check["expect"]["problems"], check["params"]["level"]))
    }
    assert wrong == {}


def accounted() -> set[str]:
    """Requirements that a vector, the generated mode or the stateful mode holds."""
    found = {requirement for _, case in CASES.values() for requirement in case["requirements"]}
    return found | set(exchange.REQUIREMENTS) | set(stateful.REQUIREMENTS)


def of_several_writers() -> set[str]:
    """Requirements of section 8 on writers that meet at one place, whom no driver is asked to stop in between; tests of
    the library that name them stage that, and the simulation does (`tests/simulation`).
    """
    text = specification()
    commit = text.partition("\n## 8. ")[2].partition("\n## 9. ")[0]
    tests = Path(__file__).parents[1].rglob("test_*.py")
    named = {name for file in tests for name in re.findall(r"UCP-W-\d{3}", file.read_text(encoding="utf-8"))}
    return {name for name, _ in requirements() if f"[{name}]" in commit and name in named}


def beside_checkpoints() -> set[str]:
    """Requirements of section 14 and its documents, and of readers in 15.2: no driver is asked for documents beside
    checkpoints, nor for what a position of a job gets (CLASSES.md); the tests of the library are.
    """
    text = specification()
    beside = text.partition("\n## 14. ")[2].partition("\n## 15. ")[0]
    own_values = text.partition("\n### 15.2 ")[2].partition("\n## 16. ")[0]
    return {
        name
        for name, _ in requirements()
        if f"[{name}]" in beside or (name.startswith("UCP-R-") and f"[{name}]" in own_values)
    } | {name for name, _ in requirements(BESIDE)}


def test_every_requirement_is_held_by_a_case_or_has_a_reason_not_to_be() -> None:
    untestable = tomllib.loads(untestable_file().read_text(encoding="utf-8"))
    missing = {name for name, _ in requirements()} - accounted() - set(untestable) - beside_checkpoints()
    missing -= of_several_writers()
    assert sorted(missing) == []


def test_cases_name_requirements_that_exist() -> None:
    assert accounted() <= {name for name, _ in requirements()}


def test_vectors_stay_small() -> None:
    assert sum(len(data) for data in files(vectors_folder()).values()) < 4 << 20


@pytest.mark.parametrize(
    ("found", "wanted", "matches"),
    [
        ("ucp.json#/a/b", "ucp.json#/a", True),
        ("ucp.json#/a", "ucp.json#/a/b", True),
        ("ucp.json", "ucp.json#/a", True),
        ("t.bin#chunk c/0", "t.bin", True),
        ("ucp.json#/ab", "ucp.json#/a", False),
        ("other.json#/a", "ucp.json#/a", False),
        ("", "ucp.json", False),
    ],
)
def test_places_match_by_key_and_beginning(found: str, wanted: str, matches: bool) -> None:
    assert at_matches(found, [wanted]) is matches


def test_no_case_tells_in_its_checkpoint_which_it_is() -> None:
    for name, (folder, _) in CASES.items():
        hint = name.rpartition("/")[2].encode()
        root = folder / "checkpoint" / "ucp.json"
        assert len(hint) < 8 or not root.exists() or json.dumps(name).encode() not in root.read_bytes()
