"""Every file of every checkpoint that DeepSpeed saves here, removed, cut short or exchanged: nothing is silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks_live.deepspeed import make_moe, make_moe_parallel, make_pipe, make_tp
from tests.frameworks_live.deepspeed.conftest import Library, Saved
from tests.frameworks_live.deepspeed.jobs import made_by
from tests.frameworks_live.deepspeed.test_parallel_experts import PATTERNS
from tests.frameworks_live.deepspeed.test_pipeline import LOST
from tests.frameworks_live.deepspeed.test_universal import stock_universal
from tests.frameworks_live.sweep import counterpart, sweep
from tests.processes import launch

pytestmark = pytest.mark.distributed

TIES = {name: "embed:0,7" for name in make_pipe.MADE if "z0" in name and "bf16" not in name}
TIES["pp-tp-z0-fp32"] = "embed:0,5"


def test_zero(saved: Saved, tmp_path: Path) -> None:
    sweep(saved.path, tmp_path).check()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tp")
    launch("tests.frameworks_live.deepspeed.make_tp", [str(folder)], 4, timeout=280)
    return folder


@pytest.mark.parametrize("name", make_tp.STAGES)
def test_tensor_parallel_ranks(shards: Path, name: str, tmp_path: Path) -> None:
    sweep(shards / name / "ckpt", tmp_path).check()


@pytest.mark.parametrize("name", make_pipe.MADE)
def test_pipelines(pipes: Path, name: str, tmp_path: Path) -> None:
    settings = {"tied_layers": TIES[name]} if name in TIES else {}
    found = sweep(pipes / name / "ckpt", tmp_path, settings=settings, drop=LOST.get(name, ()))
    found.check()
    frozen = [one for one in found.outcomes if "layer_02" in one.victim and one.harm == "remove"]
    assert len(frozen) == 1  # of a layer that is not trained nothing else says that it was there


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_by("make_moe", make_moe.MOES, tmp_path_factory)


@pytest.mark.parametrize("name", make_moe.MOES)
def test_experts(experts: Path, name: str, tmp_path: Path) -> None:
    sweep(experts / name / "ckpt", tmp_path).check()


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_by("make_moe_parallel", make_moe_parallel.CASES, tmp_path_factory, "")
    (folder / "rules.json").write_text(json.dumps(PATTERNS))
    return folder


@pytest.mark.parametrize("name", make_moe_parallel.CASES)
def test_parallel_experts(parallel: Path, name: str, tmp_path: Path) -> None:
    case = make_moe_parallel.CASES[name]
    settings = {"patterns": str(parallel / "rules.json")} if case.has_shards else {}
    settings |= {"tied_layers": TIES[name]} if name in TIES else {}
    sweep(parallel / name / "ckpt", tmp_path, settings=settings).check()


def of_ranks(name: str) -> str | None:
    """Files below ``zero`` are of parameters, and of no rank."""
    return None if "/zero/" in name else counterpart(name)


@pytest.mark.parametrize("name", ["z1-bf16", "z2-fp32", "z3-bf16"])
def test_universal_checkpoints(library: Library, name: str, tmp_path: Path) -> None:
    """As DeepSpeed's own converter makes them."""
    saved = library.get(name, 2)
    source = stock_universal(saved.path, tmp_path / "stock", "--inject_missing_state")
    sweep(source, tmp_path, family=of_ranks).check()
