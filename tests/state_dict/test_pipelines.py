"""Pipelines in flight, saved in the background and by the manager of a run, as `ucp.save` saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from ucpformat.errors import UcpError

STAGES = (
    ucp.PipelineStage(updates=10, atoms=("first",), in_flight=((10, 9),)),
    ucp.PipelineStage(updates=10, atoms=("last",)),
)
PIPELINE = ucp.Pipeline("pp", STAGES)


def state() -> dict[str, Any]:
    return {
        "model": {"first": np.full(4, 10.0), "last": np.full(4, 10.0)},
        "versions": {9: {"model": {"first": np.full(4, 9.0)}}},
    }


@pytest.fixture
def by_save(tmp_path: Path) -> Path:
    ucp.save(tmp_path / "save.ucp", state(), pipeline=PIPELINE, step=10)
    return tmp_path / "save.ucp"


def same(path: str | Path, by_save: Path) -> None:
    assert list(ucp.validate(path)) == []
    assert ucp.diff(by_save, path, by="bytes").is_equal
    with ucp.open(path) as checkpoint:
        assert checkpoint.pipeline == PIPELINE
        assert "weight-versions" in checkpoint.root.envelope.read_features


def test_async_save(tmp_path: Path, by_save: Path) -> None:
    live = state()
    save = ucp.async_save(tmp_path / "a.ucp", live, pipeline=PIPELINE, step=10)
    live["versions"][9]["model"]["first"][...] = -1  # the snapshot is taken
    save.wait()
    same(tmp_path / "a.ucp", by_save)


def test_async_saver(tmp_path: Path, by_save: Path) -> None:
    with ucp.AsyncSaver() as saver:
        saver.save(tmp_path / "a.ucp", state(), pipeline=PIPELINE, step=10)
        saver.save(tmp_path / "b.ucp", state(), pipeline=PIPELINE, step=10, base=tmp_path / "a.ucp")
    same(tmp_path / "a.ucp", by_save)
    same(tmp_path / "b.ucp", by_save)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("incremental", [False, True])
def test_the_manager_of_a_run(tmp_path: Path, by_save: Path, background: bool, incremental: bool) -> None:
    run = tmp_path / "run"
    with ucp.CheckpointManager(run, asynchronous=background, incremental=incremental) as manager:
        manager.save(10, state(), pipeline=PIPELINE)
        manager.save(11, state(), pipeline=PIPELINE)
    for step in (10, 11):
        same(run / f"step-{step}.ucp", by_save)


def test_what_does_not_fit_the_state_is_refused(tmp_path: Path) -> None:
    """As by `ucp.save`: the version that is in flight is not among the state, and there is no checkpoint."""
    drained = {"model": state()["model"]}
    with pytest.raises(UcpError) as refused:
        ucp.save(tmp_path / "a.ucp", drained, pipeline=PIPELINE)
    with pytest.raises(UcpError, match=refused.value.code):
        ucp.async_save(tmp_path / "b.ucp", drained, pipeline=PIPELINE).wait()
    for background in (False, True):
        with (
            pytest.raises(UcpError, match=refused.value.code),
            ucp.CheckpointManager(tmp_path / "run", asynchronous=background) as manager,
        ):
            manager.save(1, drained, pipeline=PIPELINE).wait()
        assert ucp.CheckpointManager(tmp_path / "run").steps() == []
