"""FSDP1's sharded state dicts, saved by two ranks in the folders that Accelerate makes, against its whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frameworks.jobs import whole
from tests.processes import launch
from ucpformat.frameworks.kinds.conversion import detect_kind
from ucpformat.frameworks.torch_save.directories import import_directory

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("processes")]


def test_shards_are_joined(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    launch("tests.frameworks.torch_save.fsdp1_worker", [str(tmp_path)], 2)
    assert detect_kind(tmp_path / "state") == "accelerate"
    job = import_directory(tmp_path / "state")
    found = whole(job)
    wanted = torch.load(tmp_path / "whole.pt", weights_only=True)
    for name, tensor in wanted["model"].items():
        assert found[name, "value"].tolist() == tensor.tolist()
        assert {slot for atom, slot in found if atom == name} == {"value", *wanted["optimizer"][name]}
        for slot, state in wanted["optimizer"][name].items():
            assert found[name, slot].tolist() == state.tolist()
    groups = job.state.optimizers["optimizer"].groups
    assert [list(group.atoms) for group in groups] == [group["params"] for group in wanted["groups"]]
    assert {f"random_states_{rank}.step" for rank in range(2)} <= job.state.values.keys()
