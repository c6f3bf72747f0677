"""Half a checkpoint is never a whole one: numbers that its files state are compared with the files that are there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conversion.formats.deepspeed.made import make_checkpoint, saved_as
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

MODEL = "mp_rank_00_model_states.pt"


def written(folder: Path, format_name: str = "deepspeed", **settings: str) -> Path:
    source = make_checkpoint(folder / "a.ucp")
    convert_checkpoint(
        source,
        folder / "ds",
        source_format="ucp",
        destination_format=format_name,
        settings={"world_size": "2"} | settings,
    )
    return folder / "ds"


def refusal(source: Path, format_name: str = "deepspeed") -> UcpError:
    with pytest.raises(UcpError) as caught:
        convert_checkpoint(
            source, source.parent / "out.ucp", source_format=format_name, destination_format="ucp"
        )
    assert caught.value.code == "UCP-E-SOURCE"
    assert not (source.parent / "out.ucp" / "ucp.json").exists()
    return caught.value


@pytest.mark.parametrize("stage", ["0", "1", "2", "3"])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mp_world_size": 2}, "mp_world_size says 2 model-parallel ranks, and files of 1 are here"),
        ({"checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": 4}}, "says 4 model-parallel ranks"),
        ({"checkpoint_parallel_dimensions": {"tp_degree": 4}}, "tp_degree says 4 tensor-parallel ranks"),
        ({"ds_config": {"tensor_parallel": {"autotp_size": 2}}}, "autotp_size in ds_config says 2"),
        (
            {"universal_checkpoint_info": {"affine_map": {"params": {"^a$": {"ranks": {0: {}, 2: {}}}}}}},
            "universal_checkpoint_info's affine_map says 3 tensor-parallel ranks",
        ),
    ],
)
def test_rank_0_alone_of_several_is_refused(
    tmp_path: Path, stage: str, changes: dict[str, object], said: str
) -> None:
    """As of AutoTP on several ranks, of which all files but those of the first were lost."""
    tag = written(tmp_path, stage=stage) / "global_step5"
    for path in tag.glob("*model_states.pt"):
        torch.save({**torch.load(path, weights_only=True), **changes}, path)
    found = refusal(tag)
    assert said in found.message
    assert "mp_rank_01_model_states.pt is missing" in found.message or "mp_rank_02" not in said


@pytest.mark.parametrize("name", [MODEL, "zero_pp_rank_0_mp_rank_00_model_states.pt"])
def test_a_universal_checkpoint_of_one_rank_of_two_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "ds"
    convert_checkpoint(
        make_checkpoint(tmp_path / "a.ucp"), folder, source_format="ucp", destination_format="ds-universal"
    )
    path = folder / "universal" / name
    torch.save({**torch.load(path, weights_only=True), "mp_world_size": 2}, path)
    if name == MODEL:
        assert "mp_rank_01_model_states.pt is missing" in refusal(folder, "ds-universal").message


def test_a_data_parallel_rank_more_or_less_is_refused(tmp_path: Path) -> None:
    tag = written(tmp_path, stage="3") / "global_step5"
    for path in tag.glob("*model_states.pt"):
        torch.save({**torch.load(path, weights_only=True), "dp_world_size": 3}, path)
    found = refusal(tag)
    assert "dp_world_size says 3 data-parallel ranks, and files of 2 are here" in found.message
    assert "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt is missing" in found.message


def exchanged(tag: Path) -> None:
    names = [f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)]
    one, other = ((tag / name).read_bytes() for name in names)
    (tag / names[0]).write_bytes(other)
    (tag / names[1]).write_bytes(one)


def renamed(tag: Path) -> None:
    shutil.copy(
        tag / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
        tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    )


@pytest.mark.parametrize("act", [exchanged, renamed])
@pytest.mark.parametrize("stage", ["1", "3"])
def test_the_file_of_another_rank_is_known_by_its_archive(
    tmp_path: Path, act: Callable[[Path], None], stage: str
) -> None:
    """Under ZeRO-3 nothing else tells: both hold as much, and no weights are there to compare with."""
    tag = written(tmp_path, stage=stage) / "global_step5"
    act(tag)
    found = refusal(tag)
    assert "it was saved as bf16_zero_pp_rank_" in found.message
    assert "give each its own name again" in found.message


def test_a_file_that_was_saved_anew_under_its_name_is_read(tmp_path: Path) -> None:
    tag = written(tmp_path) / "global_step5"
    place = tag / "mp_rank_00_model_states.pt"
    saved_as(place, tmp_path / place.name)
    shutil.move(tmp_path / place.name, place)
    convert_checkpoint(tag, tmp_path / "out.ucp", source_format="deepspeed", destination_format="ucp")
