"""The error registry (SPEC 18)."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from ucpformat.errors import REGISTRY, Problem, StoreError, UcpError, error

SPEC = (Path(__file__).parent.parent / "SPEC.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("code", REGISTRY)
def test_every_code_makes_its_exception(code: str) -> None:
    found = error(code, "a sentence", at="ucp.json#/x")
    assert isinstance(found, REGISTRY[code].kind)
    assert isinstance(found, UcpError)
    assert (found.code, found.message, found.at) == (code, "a sentence", "ucp.json#/x")
    assert str(found) == f"{code} at ucp.json#/x: a sentence"
    assert str(error(code, "a sentence")) == f"{code}: a sentence"
    assert found.problem() == Problem(code, "ucp.json#/x", "a sentence")


@pytest.mark.parametrize("code", REGISTRY)
def test_errors_survive_the_way_between_processes(code: str) -> None:
    found = pickle.loads(pickle.dumps(error(code, "a sentence", at="k")))
    assert type(found) is REGISTRY[code].kind
    assert found.problem() == Problem(code, "k", "a sentence")


def test_codes_that_are_not_registered_do_not_exist() -> None:
    with pytest.raises(AssertionError, match="UCP-E-NONSENSE"):
        UcpError("UCP-E-NONSENSE", "a sentence")
    with pytest.raises(KeyError):
        error("UCP-E-NONSENSE", "a sentence")


def test_every_code_that_the_specification_names_is_registered() -> None:
    named = set(re.findall(r"UCP-[EW]-[A-Z]+(?:-[A-Z]+)*", SPEC))
    assert len(named) > 20
    assert named <= REGISTRY.keys()


def test_warnings_are_told_by_their_code() -> None:
    assert Problem("UCP-W-UNREFERENCED", "k", "m").to_json() == {
        "code": "UCP-W-UNREFERENCED",
        "at": "k",
        "severity": "warning",
        "message": "m",
    }
    assert Problem("UCP-E-KEY", "k", "m").severity == "error"
    assert issubclass(REGISTRY["UCP-E-LINK"].kind, StoreError)
