"""Lives of logs that fail are made small: a planted defect comes down to the least life that shows it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from ucp_conformance import generated
from ucp_conformance.connection import Connection
from ucp_conformance.generated import run_lives
from ucp_conformance.log_model import LogModel
from ucp_conformance.log_plans import FIRST_LIVES, log_plans
from ucp_conformance.log_shrinking import _smaller, shrunk
from ucp_conformance.oracle.update_logs import _epoch_faults

from tests.conformance.suite import CONFORMANCE, ignore

sys.path.append(str(CONFORMANCE / "mutants"))
from defects import load, planted

Plan = dict[str, Any]
ID = "0" * 32


def require_sound(plan: Plan) -> None:
    """All that a plan has fits together."""
    model = LogModel(plan)
    for epoch in plan["epochs"]:
        document = model.document(epoch) | {"log": ID, "epoch": 0, "after": None}
        assert list(_epoch_faults(document, 0, ID)) == []
        ranks, end = epoch["ranks"], epoch["end"]
        assert len(epoch["batches"]) == len(end["lost"]) == ranks
        assert max([epoch["first_rank"], *epoch["order"], end["torn"] or 0, *(end["gap"] or [0])[1:]]) < ranks
        assert len(epoch["parts"]) == len(plan["tensors"])
        for step in epoch["steps"]:
            assert len(step["rates"]) == len(plan["groups"])
            for tensor, form in zip(plan["tensors"], step["forms"], strict=True):
                assert form in (("absent", "dense") if tensor["role"] != "gradient" else (form,))
                assert not (step["skipped"] and tensor["role"] == "gradient" and form != "absent")
                assert form != "rows" or tensor["shape"]


@given(plan=log_plans())
def test_smaller_lives_are_lives(plan: Plan) -> None:
    require_sound(plan)
    for smaller in _smaller(plan):
        require_sound(smaller)
        assert smaller != plan


@given(plan=log_plans())
def test_what_does_not_matter_goes(plan: Plan) -> None:
    """Of a plan that fails whatever it has, one step of one rank stays, of one tensor, and an end without events."""
    least = shrunk(plan, lambda _: True)
    assert len(least["epochs"]) == len(least["tensors"]) == len(least["groups"]) == 1
    (epoch,) = least["epochs"]
    assert epoch["ranks"] == len(epoch["steps"]) == 1
    assert epoch["end"] == {**FIRST_LIVES[0]["epochs"][0]["end"], "lost": [0]}
    assert list(_smaller(least)) == []


def test_what_matters_stays() -> None:
    def fails(plan: Plan) -> bool:
        ends = [epoch["end"] for epoch in plan["epochs"]]
        return any(end["zombie"] for end in ends) and sum(len(epoch["steps"]) for epoch in plan["epochs"]) > 3

    plan = shrunk(FIRST_LIVES[1], fails)
    assert fails(plan)
    assert sum(len(epoch["steps"]) for epoch in plan["epochs"]) == 4
    assert {name for epoch in plan["epochs"] for name, what in epoch["end"].items() if what} <= {
        "zombie",
        "lost",
    }


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
@pytest.mark.parametrize(
    ("name", "epochs", "steps"),
    [("log-step-lost", 1, 2), ("log-zeros-are-absent", 1, 1), ("log-losing-branch", 2, 2)],
)
def test_a_planted_defect_shrinks_to_the_least_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, epochs: int, steps: int
) -> None:
    """Also where one of the lives fails that are tried first, of which hypothesis shrinks nothing."""
    monkeypatch.setattr(generated, "SHRINKING_S", 300.0)
    (defect,) = (one for one in load("node") if one.name == name)
    planted(defect, tmp_path)
    wrong = Connection(
        f"node {tmp_path / 'conformance/drivers/node/driver.mjs'}", label="wrong", timeout=60.0
    )
    try:
        found = [result for result in run_lives([wrong], ignore, examples=1, seed_=0) if result.case]
    finally:
        wrong.kill()
    plan = found[0].case["plan"] if found and found[0].case else {}
    assert (len(plan["epochs"]), sum(len(epoch["steps"]) for epoch in plan["epochs"])) == (epochs, steps)
    assert {epoch["ranks"] for epoch in plan["epochs"]} == {1}
    assert len(plan["tensors"]) == 1
