"""``fully_sharded_model_space``, what Megatron-LM saved by default for years: in, bit-equal to memory, and resumed."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import ucpformat as ucp
from tests.frameworks_live.megatron import references
from tests.frameworks_live.megatron.cases import CASES
from tests.frameworks_live.megatron_015.cases import NAMES
from tests.processes import launch
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.errors import UcpError

WORKER = "tests.frameworks_live.megatron_015.make"

pytestmark = [pytest.mark.distributed, pytest.mark.xdist_group("megatron")]


@pytest.fixture(scope="module", params=NAMES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A case, and the folder with the checkpoint, its conversion, and what was in memory."""
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    launch(WORKER, ["save", str(folder), name], CASES[name].world)
    assert detect_format(folder / "ckpt") == "megatron"
    convert_checkpoint(folder / "ckpt", folder / "ucp", source_format="megatron", destination_format="ucp")
    return name, folder


def test_every_tensor_is_what_lay_in_memory(saved: tuple[str, Path]) -> None:
    name, folder = saved
    wanted = references.whole(references.ranks_of(folder, "rank"))
    wanted = wanted if CASES[name].by_layer else references.stacked(wanted)
    assert not ucp.validate(folder / "ucp")
    with ucp.open(folder / "ucp") as checkpoint:
        assert set(checkpoint) == set(wanted)
        for atom, slots in wanted.items():
            assert set(checkpoint[atom]) == {*slots, "step"}
            for slot, tensor in slots.items():
                found = checkpoint[atom][slot][...]
                low = tensor.dtype == torch.bfloat16
                data = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if low else tensor.numpy()
                assert found.dtype == data.dtype
                assert found.tobytes() == np.ascontiguousarray(data).tobytes(), (atom, slot)
            assert (checkpoint[atom]["step"][...] == 2).all()
        assert {atom for group in checkpoint.state.optimizers["optim"].groups for atom in group.atoms} == set(
            wanted
        )


def test_megatron_resumes_at_another_degree(saved: tuple[str, Path]) -> None:
    """As ``fully_reshardable``, which 0.15 loads and which later versions load alone."""
    name, folder = saved
    convert_checkpoint(
        folder / "ucp", folder / "exported", source_format="ucp", destination_format="megatron"
    )
    launch(WORKER, ["load", str(folder), name], CASES[name].resumed[0])
    for stem, again in (("rank", "resumed"), ("later", "resumed-later")):
        if stem == "later" and CASES[name].forward:
            continue
        before = references.whole(references.ranks_of(folder, stem))
        after = references.whole(references.ranks_of(folder, again))
        assert set(before) == set(after)
        for atom, slots in before.items():
            for slot, tensor in slots.items():
                assert torch.equal(after[atom][slot], tensor), (stem, atom, slot)


def test_as_a_directory_of_torch_it_is_refused(saved: tuple[str, Path], tmp_path: Path) -> None:
    _, folder = saved
    with pytest.raises(UcpError, match="flattened pieces") as refusal:
        convert_checkpoint(folder / "ckpt", tmp_path / "no", source_format="dcp", destination_format="ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
