"""A pipeline with stashed weights over real processes: killed in flight, it goes on in its place, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ucpformat as ucp
from tests.processes import launch
from ucpformat import MismatchError

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("distributed")]
WORKER = "tests.distributed.pipeline_worker"
TOTAL = 9


def job(
    folder: Path,
    *,
    widths: str = "1,2,1",
    saved: int = 0,
    killed: int = 0,
    resumed: int = 0,
) -> None:
    """Run the pipeline; ``saved`` and ``killed`` are numbers of updates."""
    folder.mkdir(exist_ok=True)
    numbers = [TOTAL, saved, killed, resumed]
    world = sum(map(int, widths.split(",")))
    launch(WORKER, [str(folder), widths, *map(str, numbers)], world)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drained checkpoint of a pipeline that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    job(folder)
    return folder / "drained-0-1,2,1.ucp"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pipeline that was killed behind its fifth update, with a checkpoint of its third."""
    folder = tmp_path_factory.mktemp("killed")
    with pytest.raises(RuntimeError, match="ended with status"):
        job(folder, saved=3, killed=5)
    assert sorted(folder.iterdir()) == [folder / "step-3.ucp"]
    return folder


def test_it_goes_on_to_the_last_bit(whole: Path, killed: Path) -> None:
    job(killed, resumed=3)
    assert ucp.diff(whole, killed / "drained-3-1,2,1.ucp").is_equal


def test_what_was_in_flight_is_said(killed: Path) -> None:
    path = killed / "step-3.ucp"
    assert list(ucp.validate(path)) == []
    with ucp.open(path) as checkpoint:
        pipeline = checkpoint.pipeline
        assert checkpoint.metadata["read_features"] == ["weight-versions"]
        first = checkpoint["layers.0.weight"]
        assert len({first[slot].read().tobytes() for slot in first}) == 3, "versions that differ"
        slots = {name: set(view) for name, view in checkpoint.items() if name.endswith("weight")}
    assert pipeline is not None
    assert [stage.in_flight for stage in pipeline.stages] == [((3, 1), (4, 2)), ((3, 2),), ()]
    assert slots == {
        "layers.0.weight": {"value", "version-1", "version-2"},
        "layers.1.weight": {"value", "version-2"},
        "layers.2.weight": {"value"},
        **{f"momentum.layers.{stage}.weight": {"value"} for stage in range(3)},
    }


def test_before_every_stage_has_a_version_of_its_own(whole: Path, tmp_path: Path) -> None:
    """Behind the first update both minibatches of the first stage have gone through its weights as they began."""
    job(tmp_path, saved=1)
    job(tmp_path, resumed=1)
    assert ucp.diff(whole, tmp_path / "drained-1-1,2,1.ucp").is_equal


def test_stages_may_have_other_widths(whole: Path, killed: Path) -> None:
    """Sums are taken in another order then."""
    job(killed, widths="1,1,1", resumed=3)
    with ucp.open(whole) as one, ucp.open(killed / "drained-3-1,1,1.ucp") as other:
        for name, view in one.items():
            assert np.allclose(view["value"].read(), other[name]["value"].read(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layout", ["none", "other stage", "fewer stages", "replicated"])
def test_other_stages_are_refused(killed: Path, layout: str) -> None:
    stages = 2 if layout == "fewer stages" else 3
    steps = {"replicated": (), "other stage": (ucp.Only("pp", (0, 1)),)}.get(layout, (ucp.Only("pp", (0,)),))
    mesh = ucp.Mesh((ucp.MeshAxis("pp", stages),))
    name = "model.layers.0.bias"
    state = {"model": {"layers.0.bias": np.zeros(10, np.float32)}}
    layouts = {} if layout == "none" else {name: ucp.TensorLayout(ucp.Layout(mesh, steps), (10,))}
    with pytest.raises(MismatchError, match="goes on with stage 0 of 3 on the axis pp"):
        ucp.load(killed / "step-3.ucp", state, layouts=layouts, strict=False)
    assert not state["model"]["layers.0.bias"].any()


def test_whoever_has_no_stages_is_refused(killed: Path, tmp_path: Path) -> None:
    path = killed / "step-3.ucp"
    with pytest.raises(MismatchError, match="save it drained"):
        ucp.load(path)
    with pytest.raises(MismatchError, match="save it drained"):
        ucp.convert(path, tmp_path / "weights.safetensors")
    ucp.convert(path, tmp_path / "copy.ucp", storage="plain")
    assert ucp.diff(path, tmp_path / "copy.ucp").is_equal
    assert list(ucp.validate(tmp_path / "copy.ucp")) == []


def test_a_drained_pipeline_is_an_ordinary_checkpoint(whole: Path, tmp_path: Path) -> None:
    with ucp.open(whole) as checkpoint:
        assert checkpoint.metadata["read_features"] == []
        assert checkpoint.state.pipeline is None
        assert {slot for view in checkpoint.values() for slot in view} == {"value"}
        weight = checkpoint["layers.1.weight"]["value"].read()
    everything = ucp.load(whole)
    assert np.array_equal(everything["model"]["layers.1.weight"], weight)
    mesh = ucp.Mesh((ucp.MeshAxis("tp", 1),))
    split = ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("tp", 1, "even"),)), (8, 10))
    state = {"model": {"layers.1.weight": np.zeros((8, 10), np.float32)}}
    ucp.load(whole, state, layouts={"model.layers.1.weight": split}, strict=False)
    assert np.array_equal(state["model"]["layers.1.weight"], weight)
    ucp.save(tmp_path / "again.ucp", everything)
    assert ucp.diff(whole, tmp_path / "again.ucp").is_equal
