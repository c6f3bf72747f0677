"""Files of two saves in one directory, ranks too few and too many: refused, and the file is named."""

from __future__ import annotations

import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conversion.formats.deepspeed.made import make_checkpoint, saved_as
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

MODEL = "zero_pp_rank_{}_mp_rank_00_model_states.pt"
OPTIMIZER = "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ZeRO-3 on two ranks, which both have a file of the model."""
    folder = tmp_path_factory.mktemp("zero3")
    convert_checkpoint(
        make_checkpoint(folder / "a.ucp"),
        folder / "ds",
        source_format="ucp",
        destination_format="deepspeed",
        settings={"stage": "3", "world_size": "2"},
    )
    return folder / "ds"


def changed(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def act(tag: Path) -> None:
        tree = torch.load(tag / name, weights_only=True)
        change(tree)
        torch.save(tree, tag / name)

    return act


def rewritten(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    """Exchange the content of numbers in a file that names classes of DeepSpeed."""

    def act(tag: Path) -> None:
        with zipfile.ZipFile(tag / name) as archive:
            records = {one: archive.read(one) for one in archive.namelist()}
        assert any(old in data for data in records.values())
        with zipfile.ZipFile(tag / name, "w") as archive:
            for one, data in records.items():
                archive.writestr(one, data.replace(old, new))

    return act


def removed(tag: Path) -> None:
    (tag / OPTIMIZER.format(1)).unlink()


def one_more(tag: Path) -> None:
    for name in (MODEL, OPTIMIZER):
        saved_as(tag / name.format(1), tag / name.format(2))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (changed(MODEL.format(1), lambda tree: tree.update(global_steps=6)), "global_steps is 6"),
        (changed(MODEL.format(1), lambda tree: tree.update(dp_world_size=3)), "dp_world_size is 3"),
        (changed(MODEL.format(1), lambda tree: tree["param_shapes"][0].popitem()), "other parameters than"),
        (changed(MODEL.format(1), lambda tree: tree["frozen_param_shapes"].clear()), "other parameters than"),
        (
            rewritten(OPTIMIZER.format(1), *(struct.pack(">d", rate) for rate in (0.2, 0.3))),
            "hyper-parameters",
        ),
        (
            rewritten(OPTIMIZER.format(1), *(struct.pack("<f", step) for step in (5, 6))),
            "state 'step' of flat",
        ),
        (removed, "rank_1"),
        (one_more, "dp_world_size says 2 data-parallel ranks, and files of 3 are here"),
    ],
)
def test_files_that_are_not_of_one_save(
    whole: Path, tmp_path: Path, act: Callable[[Path], None], said: str
) -> None:
    shutil.copytree(whole, tmp_path / "ds")
    act(tmp_path / "ds" / "global_step5")
    with pytest.raises(UcpError, match=said) as refusal:
        convert_checkpoint(
            tmp_path / "ds", tmp_path / "b.ucp", source_format="deepspeed", destination_format="ucp"
        )
    assert refusal.value.code in ("UCP-E-SOURCE", "UCP-E-MISSING")
