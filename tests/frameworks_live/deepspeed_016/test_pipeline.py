"""bf16 pipelines without ZeRO, which `load_checkpoint` of DeepSpeed 0.16 loads in one call: in, out, and trained on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ucpformat
from tests.frameworks_live.deepspeed.make_pipe import PIPES
from tests.frameworks_live.deepspeed.test_import import array_of
from tests.frameworks_live.deepspeed.test_pipeline import reference
from tests.processes import Ranks, launch, launch_in_turn
from ucpformat.conversion.convert import convert_checkpoint

WORKER = "tests.frameworks_live.deepspeed.make_pipe"
SOURCE = "pipe2-z0-bf16"
WAYS = {"pipe2-z0-bf16": (4, "0,4"), "pipe3-z0-bf16": (3, "0,3,6")}

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("deepspeed")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What DeepSpeed saved and gathered, its conversion, and what DeepSpeed has of that under each of ``WAYS``."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "source").mkdir()
    launch("tests.frameworks_live.deepspeed.kernel", [], 1, timeout=560)
    launch(WORKER, [f"make:{SOURCE}:{folder / 'source'}"], 4)
    middle = folder / "middle.ucp"
    convert_checkpoint(folder / "source/ckpt", middle, source_format="deepspeed", destination_format="ucp")
    jobs = []
    for name, (world, pipeline) in WAYS.items():
        settings = {"pipeline": pipeline, "world_size": str(world // PIPES[name].stages), "stage": "0"}
        out = folder / f"{name}.native"
        convert_checkpoint(
            middle, out, source_format="ucp", destination_format="deepspeed", settings=settings
        )
        jobs.append(Ranks([f"load:{name}:{out}:{folder / name}"], world))
    launch_in_turn(WORKER, jobs)
    return folder


def test_every_tensor_is_what_the_stages_hold(made: Path) -> None:
    wanted = reference(made / "source")["tensors"]
    with ucpformat.open(made / "middle.ucp") as checkpoint:
        assert set(checkpoint) == set(wanted)
        for atom, held in wanted.items():
            assert set(checkpoint[atom]) - {"step"} == set(held)
            for slot, tensor in held.items():
                assert checkpoint[atom][slot].read().tobytes() == array_of(tensor).tobytes(), (atom, slot)


@pytest.mark.parametrize("name", WAYS)
def test_one_call_loads_what_we_write(made: Path, name: str) -> None:
    wanted, found = reference(made / "source"), reference(made / name)
    for atom, held in wanted["tensors"].items():
        for slot, tensor in held.items():
            assert torch.equal(found["tensors"][atom][slot], tensor), (atom, slot)
    if name == SOURCE:
        assert found["losses"] == wanted["losses"]
        for atom, held in wanted["later"].items():
            assert all(torch.equal(found["later"][atom][slot], tensor) for slot, tensor in held.items()), atom
    assert found["losses"] == pytest.approx(wanted["losses"], rel=2e-2)
