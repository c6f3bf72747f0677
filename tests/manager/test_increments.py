"""A run of increments: what is shared, what is kept, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from ucpformat.errors import UcpError


def states(count: int) -> list[dict[str, Any]]:
    """A large tensor that stays, and a small one that does not."""
    frozen = np.arange(1, 50_001, dtype=np.float32)
    return [{"frozen": frozen, "trained": np.full(10, step, np.float32)} for step in range(1, count + 1)]


def shared_of(path: Path) -> bool:
    with ucp.open(path) as ckpt:
        return any(pack.shared for pack in ckpt.packs or ())


@pytest.mark.parametrize("background", [False, True])
def test_each_checkpoint_costs_what_has_changed_and_stands_alone(tmp_path: Path, background: bool) -> None:
    with ucp.CheckpointManager(tmp_path / "run", incremental=True, asynchronous=background) as manager:
        reports = [manager.save(step, state).wait() for step, state in enumerate(states(5), 1)]
    assert [report.stored.data for report in reports] == [200_040, 40, 40, 40, 40]
    for step in (1, 2, 4, 5):
        shutil.rmtree(tmp_path / "run" / f"step-{step}.ucp")
    assert list(ucp.validate(tmp_path / "run" / "step-3.ucp")) == []
    assert ucp.load(tmp_path / "run" / "step-3.ucp")["trained"][0] == 3


def test_retention_takes_nothing_from_those_that_stay(tmp_path: Path) -> None:
    with ucp.CheckpointManager(tmp_path / "run", incremental=True, keep_last=2) as manager:
        for step, state in enumerate(states(6), 1):
            manager.save(step, state)
            for left in manager.steps():
                assert list(ucp.validate(manager.path(left))) == []
        assert manager.steps() == [5, 6]


def test_every_so_often_one_shares_nothing(tmp_path: Path) -> None:
    shares = []
    for step, state in enumerate(states(7), 1):
        # Another manager each time, as after a restart.
        with ucp.CheckpointManager(tmp_path / "run", incremental=True, full_every=3) as manager:
            manager.save(step, state)
        shares.append(shared_of(tmp_path / "run" / f"step-{step}.ucp"))
    assert shares == [False, True, True, False, True, True, False]


def test_what_nothing_can_be_shared_with_is_followed_by_a_full_one(tmp_path: Path) -> None:
    first, second, third = states(3)
    with ucp.CheckpointManager(tmp_path / "run", incremental=True) as manager:
        manager.save(1, first)
        manager.save(2, second, storage="plain")
        assert list(ucp.validate(manager.path(2))) == []
        for path in (tmp_path / "run" / "step-2.ucp" / "index").iterdir():
            path.write_bytes(b"")
        assert manager.save(3, third, storage="plain").wait().stored.data > 200_000
        assert list(ucp.validate(manager.path(3))) == []


@pytest.mark.parametrize(
    ("directory", "options", "code"),
    [
        ("run", {"full_every": 3}, "UCP-E-MISMATCH"),
        ("run", {"incremental": True, "full_every": 0}, "UCP-E-LIMIT"),
        ("https://example.org/run", {"incremental": True}, "UCP-E-STORE"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, directory: str, options: dict[str, Any], code: str
) -> None:
    place = directory if "://" in directory else tmp_path / directory
    with pytest.raises(UcpError, match=code):
        ucp.CheckpointManager(place, **options)
