"""How the manager looks at a run: revisions of steps, damage of what is not read, ages of remote objects."""

from __future__ import annotations

import datetime
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

import ucpformat as ucp
from tests.manager.test_checkpoint_manager import blank, entries, files, overwrite, pack, put, run, state
from ucpformat.errors import UcpError
from ucpformat.manager import collection
from ucpformat.manager.remote_place import RemotePlace

__all__ = ["run"]  # a fixture


def test_the_last_of_many_revisions_counts(run: str) -> None:
    """Also of more than nine: revisions are numbers, which names do not sort by."""
    with ucp.CheckpointManager(run) as manager:
        save = manager.save(1, state(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "ucpformat.manager.checkpoint_manager.collect", lambda *_, **__: collection.Collected()
            )
            for number in range(1, 11):
                save = manager.save(1, state(number))
        assert Path(save.path).name == "step-1.r10.ucp"
        filled = blank()
        manager.restore(filled)
        assert filled["step"] == 10
        assert len(manager.collect()) == 10
        assert entries(run) == {"step-1.r10.ucp"}


def test_a_check_finds_damage_of_what_is_not_read(run: str) -> None:
    held = {"w": np.arange(5000, dtype=np.float32), "other": np.arange(5000, dtype=np.int32)}
    with ucp.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, held)
    overwrite(run, pack(run, 2), lambda data: data.replace(held["other"].tobytes(), bytes(20_000)))
    filled = {"w": np.zeros(5000, np.float32)}
    with ucp.CheckpointManager(run) as manager:
        assert manager.resume(filled) == 2
        assert manager.resume(filled, check="semantics") == 2
        with pytest.warns(RuntimeWarning, match="step 2 is damaged"):
            assert manager.resume(filled, check="integrity") == 1


def test_the_age_of_remote_debris_is_that_of_its_newest_object(monkeypatch: pytest.MonkeyPatch) -> None:
    run = f"memory://{uuid4().hex}/run"
    put(run, "step-1.ucp/packs/a-0-0.pack")
    put(run, "step-1.ucp/packs/a-1-0.pack")
    now = datetime.datetime.now(datetime.UTC)
    ages = {"a-0-0.pack": 7200, "a-1-0.pack": 600}

    def changed(_: object, key: str) -> datetime.datetime:
        return now - datetime.timedelta(seconds=ages.get(key.rpartition("/")[2], 0))

    monkeypatch.setattr(RemotePlace, "_changed", changed)
    place = RemotePlace(run)
    assert place.age("step-1.ucp") == 600
    with pytest.raises(UcpError, match="writer is at work") as caught:
        place.clear("step-1.ucp", older_than=3600)
    assert caught.value.code == "UCP-E-EXISTS"
    assert len(files(run)) == 2
    place.clear("step-1.ucp", older_than=600)
    assert files(run) == []
