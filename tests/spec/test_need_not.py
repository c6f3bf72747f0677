"""What section 17.3 lets readers leave unchecked, no case demands of them."""

from __future__ import annotations

import json
import re

from tests.documentation.markdown import ROOT


def unchecked() -> frozenset[str]:
    """Return the requirements that section 17.3 lists, ranges written out."""
    text = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    passage = text.partition("A reader need not check what changes nothing")[2].partition("\nNor need it")[0]
    found: set[str] = set()
    for first, last in re.findall(r"UCP-D-(\d{3})(?: to UCP-D-(\d{3}))?", passage):
        found.update(f"UCP-D-{number:03}" for number in range(int(first), int(last or first) + 1))
    return frozenset(found)


def test_no_case_demands_of_a_reader_what_it_need_not_check() -> None:
    ids = unchecked()
    assert len(ids) == 9
    held = set()
    for path in sorted((ROOT / "conformance" / "vectors" / "bad").rglob("*.json")):
        case = json.loads(path.read_bytes())
        if not set(case["requirements"]) & ids:
            continue
        held.update(set(case["requirements"]) & ids)
        for check in case["checks"]:
            codes = check["expect"].get("error", {}).get("codes", [])
            # A pack that is not there is no matter of its length.
            assert check["role"] != "reader" or set(codes) <= {"UCP-E-MISSING"}, path
    assert held == ids
