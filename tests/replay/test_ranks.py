"""What one parallelism has logged, another recovers, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ucpformat as ucp
from tests.processes import launch
from tests.replay.ranks_worker import made
from ucpformat.update_log.validation import log_problems

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]
WORKER = "tests.replay.ranks_worker"


def run_ranks(run: Path, kind: str, world: int, stop: int) -> dict[str, Any]:
    out = run.parent / f"{kind}-{world}-{stop}.pt"
    launch(WORKER, [str(run), kind, str(stop), str(out)], world)
    found: dict[str, Any] = torch.load(out, weights_only=True)
    return found


def here(run: Path) -> tuple[dict[str, torch.Tensor], ucp.Recovery]:
    """The state that this process alone recovers."""
    model = made()
    recovery = ucp.recover(run, model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    return {name: one.detach() for name, one in model.state_dict().items()}, recovery


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    plain = {name.removeprefix("module."): one for name, one in first.items()}
    return plain.keys() == second.keys() and all(
        torch.equal(one, second[name]) for name, one in plain.items()
    )


def test_each_parallelism_recovers_what_another_has_logged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Each saves a checkpoint on its way, and two steps behind it.
    stops = {("ddp", 2): 6, ("fsdp-tp", 4): 12, ("fsdp", 3): 18, ("fsdp", 2): 24}
    before = 0
    for (kind, world), stop in stops.items():
        found = run_ranks(run, kind, world, stop)
        assert found["recovered"] == before
        state, recovery = here(run)
        assert (recovery.step, recovery.exactness) == (stop, "bitwise")
        assert recovery.checked > 0
        assert same(found["state"], state), kind
        before = stop
    assert log_problems(str(run / "updates.ucplog")) == []


def test_ranks_share_the_work(tmp_path: Path) -> None:
    """Under DDP every rank has every gradient, and each is logged once."""
    run_ranks(tmp_path / "run", "ddp", 2, 4)
    sizes = [
        sum(one.stat().st_size for one in (tmp_path / f"run/updates.ucplog/batches/0/{rank}").iterdir())
        for rank in (0, 1)
    ]
    assert max(sizes) < 2 * min(sizes)
