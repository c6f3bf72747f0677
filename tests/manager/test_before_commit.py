"""What a save calls before it commits (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ucpformat as ucp


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_called_before_a_commit_may_fail_the_save(tmp_path: Path, asynchronous: bool) -> None:
    """As `UpdateLog` does where another start of the job has gone on."""

    def refuse() -> None:
        raise ucp.UcpError("UCP-E-FENCED", "another has gone on", at="run")

    called: list[list[int]] = []
    state = {"w": np.zeros(4, np.float32)}
    with ucp.CheckpointManager(tmp_path, asynchronous=asynchronous) as manager:
        manager.save(1, state, before_commit=lambda: called.append(manager.run.steps())).wait()
        with pytest.raises(ucp.UcpError, match="UCP-E-FENCED"):
            manager.save(2, state, before_commit=refuse).wait()
        assert manager.steps() == [1]
    assert called == [[]]
