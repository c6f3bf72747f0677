"""The vectors: well-formed, made by the generator, judged by the oracle as they say, complete."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from ucp_conformance import exchange, log_sequences, stateful
from ucp_conformance.cli import main
from ucp_conformance.judge import at_matches
from ucp_conformance.mutation import entry_of, file_of
from ucp_conformance.oracle.examine import examine
from ucp_conformance.oracle.levels import at_level
from ucp_conformance.resources import protocol_validator, specification, untestable_file, vectors_folder
from ucp_conformance.vectors import Vector, all_vectors, vectors_digest
from ucp_conformance.workplace import Workplace

from tests.conformance.suite import CONFORMANCE, files
from tests.spec.document import BESIDE, requirements

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc~/"), inner),
).map(lambda value: json.dumps(value, separators=(",", ":")).encode())
LOGS = "SPEC-UPDATE-LOGS.md"
VECTORS = {vector.id: vector for vector in all_vectors()}


def test_every_case_meets_its_schema_and_stands_where_its_id_says() -> None:
    assert len(VECTORS) > 800
    for name, vector in VECTORS.items():
        protocol_validator("case").validate(vector.case)
        document = json.loads((vectors_folder() / f"{name}.json").read_bytes())
        protocol_validator("vector").validate(document)
        assert document["id"] == name


def test_every_file_is_a_case() -> None:
    assert len(list(vectors_folder().rglob("*"))) - len(list(vectors_folder().glob("*/*"))) - 3 == len(
        VECTORS
    )


def test_a_mutation_keeps_no_file_that_its_parent_has() -> None:
    for name, vector in VECTORS.items():
        if "mutates" not in vector.case:
            continue
        parent = VECTORS[vector.case["mutates"]].checkpoint
        kept = json.loads((vectors_folder() / f"{name}.json").read_bytes())["files"]
        same = {key for key, data in vector.checkpoint.items() if parent.get(key) == data}
        assert not {f"checkpoint/{key}" for key in same} & kept.keys()


def test_cases_are_unpacked_as_plain_files_whose_digest_the_reports_state(tmp_path: Path) -> None:
    for vector in VECTORS.values():
        vector.unpack(tmp_path / vector.id)
    whole = hashlib.sha256()
    for path in sorted(path for path in tmp_path.rglob("*") if path.is_file()):
        whole.update(path.relative_to(tmp_path).as_posix().encode() + b"\0")
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    assert vectors_digest() == f"sha256:{whole.hexdigest()}"


def test_the_command_unpacks_the_cases_that_are_asked_for(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["unpack", str(tmp_path / "plain"), "--only", "bad/torn/root-empty"])
    assert done.output == f"1 case in {tmp_path / 'plain'}\n"
    found = files(tmp_path / "plain")
    assert found == {
        f"bad/torn/root-empty/{key}": data for key, data in VECTORS["bad/torn/root-empty"].plain()
    }


BEFORE = b'{"a":{"b/c":[1,2,3]},"d":"x"}'


@pytest.mark.parametrize(
    ("data", "entry"),
    [
        (b'{"a":{"b/c":[1,2,4]},"d":"x"}', {"set": {"/a/b~1c/2": 4}}),
        (b'{"a":{"b/c":[1,2,3]},"e":1.0}', {"set": {"/e": 1.0}, "drop": ["/d"]}),
        (b'{"a":{"b/c":[1,2.0,3]},"d":"x"}', {"set": {"/a/b~1c/1": 2.0}}),
        (b'{"d":"x","a":{"b/c":[1,2,3]}}', {"json": {"d": "x", "a": {"b/c": [1, 2, 3]}}}),
        (b'{"a":{"b/c":[1,2,3]},"d":"x"} ', {"splice": [{"at": 29, "cut": 0, "text": " "}]}),
        (BEFORE[:-1], {"splice": [{"at": 28, "cut": 1, "text": ""}]}),
        (b'{"a":{"b/c":[1,2,\xff]},"d":"x"}', {"splice": [{"at": 17, "cut": 1, "hex": "ff"}]}),
        (b"[1e999]", {"text": "[1e999]"}),
        (b"[" * 100000, {"text": "[" * 100000}),
        (b"\0" * 64 + b"\1", {"hex": ["00" * 32 + "*2", "01"]}),
        (b"", {"text": ""}),
    ],
)
def test_files_are_kept_as_what_changes_in_those_of_the_parent(data: bytes, entry: dict[str, Any]) -> None:
    assert json.dumps(entry_of(data, BEFORE)) == json.dumps(entry)
    assert file_of(entry, BEFORE) == data


@given(before=st.none() | DOCUMENTS | st.binary(), data=DOCUMENTS | st.binary())
def test_what_is_kept_of_a_file_is_the_file(before: bytes | None, data: bytes) -> None:
    entry = json.loads(json.dumps(entry_of(data, before)))
    assert file_of(entry, before) == data


@pytest.mark.parametrize("entry", [{"set": {"/a": 1}}, {"splice": []}, {"base64": ""}])
def test_a_change_of_nothing_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(entry))):
        file_of(entry, None)


def test_names_of_checks_are_unique_within_a_case() -> None:
    for vector in VECTORS.values():
        names = [check["name"] for check in vector.case["checks"]]
        assert len(set(names)) == len(names)


def test_every_bad_case_has_a_good_parent() -> None:
    bad = [vector for name, vector in VECTORS.items() if name.startswith("bad/")]
    assert len(bad) > 250
    assert {vector.case["mutates"] for vector in bad} <= VECTORS.keys()


def test_the_generator_makes_exactly_these_vectors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "generate", str(tmp_path / "vectors")]
    subprocess.run(command, check=True, cwd=CONFORMANCE, capture_output=True)
    made, kept = files(tmp_path / "vectors"), files(vectors_folder())
    kept = {name: data for name, data in kept.items() if not name.startswith("good/promoted/")}
    assert made.keys() == kept.keys()
    assert [name for name, data in made.items() if kept[name] != data] == []
    for name in ("lowering.json", "LOWERING.md"):
        assert (tmp_path / name).read_bytes() == (CONFORMANCE / name).read_bytes(), name


def verdict(vector: Vector, check: dict[str, Any]) -> str:
    """What the oracle's findings lack of what a check expects; empty where they agree."""
    wanted = check["expect"]["problems"]
    place = Workplace()
    try:
        path = place.checkpoint(vector.checkpoint, vector.case.get("setup", []))
        problems = examine(path / check.get("within", "")).problems
        problems = at_level(problems, check["params"]["level"])
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
    """But in chunks of Zstandard and Blosc, which it does not decode."""
    wrong = {
        name: found
        for name, vector in VECTORS.items()
        if not name.startswith(("bad/codec/zstd-", "bad/codec/blosc-"))
        for check in vector.case["checks"]
        if check["op"] == "validate" and (found := verdict(vector, check))
    }
    assert wrong == {}


def accounted() -> set[str]:
    """Requirements that a vector, an exchange, a sequence or a life of a log holds."""
    found = {requirement for vector in VECTORS.values() for requirement in vector.case["requirements"]}
    return found | set(exchange.REQUIREMENTS) | set(stateful.REQUIREMENTS) | set(log_sequences.REQUIREMENTS)


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
    checkpoints but update logs, for what a position of a job gets (CLASSES.md), or to extract images, and
    none is looked at by a disk that loses power; the tests of the library are.
    """
    text = specification()
    beside = text.partition("\n## 14. ")[2].partition("\n## 15. ")[0]
    own_values = text.partition("\n### 15.2 ")[2].partition("\n## 16. ")[0]
    return (
        {
            name
            for name, _ in requirements()
            if f"[{name}]" in beside or (name.startswith("UCP-R-") and f"[{name}]" in own_values)
        }
        | {name for name, _ in requirements(tuple(one for one in BESIDE if one != LOGS))}
        | {"UCP-S-006", "UCP-W-037"}
    )


def test_every_requirement_is_held_by_a_case_or_has_a_reason_not_to_be() -> None:
    untestable = tomllib.loads(untestable_file().read_text(encoding="utf-8"))
    missing = {name for name, _ in requirements()} - accounted() - set(untestable) - beside_checkpoints()
    missing -= of_several_writers()
    assert sorted(missing) == []


def test_cases_name_requirements_that_exist() -> None:
    assert accounted() <= {name for name, _ in requirements()}


def test_vectors_stay_small() -> None:
    # A quarter of them are update logs, and chunks of zstd and blosc.
    assert sum(len(data) for data in files(vectors_folder()).values()) < 5 << 20


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
    for name, vector in VECTORS.items():
        hint = name.rpartition("/")[2].encode()
        root = vector.checkpoint.get("ucp.json", b"")
        assert len(hint) < 8 or json.dumps(name).encode() not in root
