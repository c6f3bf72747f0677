"""Files of two tensor-parallel ranks become one checkpoint, by affine maps; AutoTP's own in tests/frameworks_live."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat
from tests.frameworks.deepspeed.made import make_checkpoint
from ucpformat.errors import UcpError
from ucpformat.frameworks.deepspeed.affine import affine_description
from ucpformat.frameworks.deepspeed.autotp import split_steps
from ucpformat.frameworks.kinds import convert_checkpoint
from ucpformat.geometry import Layout, Mesh, MeshAxis, lower

WIDTHS = (3, 2)
COLUMNS = (1, 4)
TP = Mesh((MeshAxis("tp", 2),))


def shards_of(rank: int) -> dict[str, tuple[int, ...]]:
    return {"embed.weight": (4, 2), "rows": (WIDTHS[rank], 3), "columns": (3, COLUMNS[rank]), "norm": (4,)}


def described() -> dict[str, Any]:
    rows = affine_description(lower(Layout(TP, split_steps("tp", 0, WIDTHS)), (5, 3)))
    columns = affine_description(lower(Layout(TP, split_steps("tp", 1, COLUMNS)), (3, 5)))
    norm = affine_description(lower(Layout(TP), (4,)))
    return {"version": 1, "params": {"^rows$": rows, "^columns$": columns, "^norm$": norm}}


def saved(folder: Path, *, same_norm: bool = True, **changes: Any) -> Path:
    """Two ranks' files side by side, each written as a job of its own and then given its place."""
    out = folder / "ds" / "tag"
    out.mkdir(parents=True)
    groups = [["rows", "norm"], ["embed.weight", "columns"]]
    for rank in range(2):
        salts = {"rows": rank, "columns": rank, "norm": 0 if same_norm else rank}
        source = make_checkpoint(folder / f"{rank}.ucp", shapes=shards_of(rank), groups=groups, salts=salts)
        settings = {"world_size": "2", "stage": "1"}
        convert_checkpoint(
            source, folder / f"{rank}.ds", source_kind="ucp", destination_kind="deepspeed", settings=settings
        )
        for file in (folder / f"{rank}.ds" / "global_step5").iterdir():
            place = out / file.name.replace("mp_rank_00", f"mp_rank_{rank:02d}")
            shutil.copy(file, place)
            if "model_states" in file.name:
                tree = torch.load(place, weights_only=True)
                tree["checkpoint_parallel_dimensions"] = {"pp_degree": 1, "tp_degree": 2}
                tree["universal_checkpoint_info"] = {"affine_map": described()}
                tree["rank"] = rank
                torch.save({**tree, **changes}, place)
    return out.parent / "tag"


def converted(source: Path, out: Path) -> Path:
    convert_checkpoint(source, out, source_kind="deepspeed", destination_kind="ucp")
    return out


def test_shards_are_joined(tmp_path: Path) -> None:
    path = converted(saved(tmp_path), tmp_path / "out.ucp")
    assert ucpformat.validate(path) == []
    with (
        ucpformat.open(path) as found,
        ucpformat.open(tmp_path / "0.ucp") as first,
        ucpformat.open(tmp_path / "1.ucp") as second,
    ):
        for slot in ("value", "master", "exp_avg", "exp_avg_sq"):
            for name, axis in (("rows", 0), ("columns", 1)):
                whole = np.concatenate([first[name][slot].read(), second[name][slot].read()], axis=axis)
                assert found[name][slot].read().tobytes() == whole.tobytes(), (name, slot)
            for name in ("embed.weight", "norm"):
                assert found[name][slot].read().tobytes() == first[name][slot].read().tobytes()
        assert found["rows"]["step"].read() == 5
        assert (found.value("rank"), found.value("mp_rank/1/rank")) == (0, 1)
        assert found["embed.weight"].atom.aliases == ("head.weight",)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"universal_checkpoint_info": {}}, "no affine map"),
        ({"universal_checkpoint_info": {"affine_map": {"version": 2, "params": {}}}}, "version 2"),
        (
            {"universal_checkpoint_info": {"affine_map": {**described(), "params": {"^odd$": {}}}}},
            "no parameter here",
        ),
        ({"checkpoint_parallel_dimensions": {"pp_degree": 2, "tp_degree": 1}}, "of one stage"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UcpError, match=text) as refusal:
        converted(saved(tmp_path, **changes), tmp_path / "out.ucp")
    assert refusal.value.code == "UCP-E-SOURCE"
    assert refusal.value.at == "mp_rank_00_model_states.pt"


def test_maps_of_other_widths_and_scaled_ones_are_refused(tmp_path: Path) -> None:
    other = affine_description(lower(Layout(TP, split_steps("tp", 0, (2, 3))), (5, 3)))
    scaled = affine_description(lower(Layout(TP), (4,)))
    for value in scaled["ranks"].values():
        for piece in value["pieces"]:
            piece["scale"] = 0.5
    for number, (name, entry, text) in enumerate(
        (("rows", other, "have shapes"), ("norm", scaled, "scaled"))
    ):
        maps = described()
        maps["params"][f"^{name}$"] = entry
        source = saved(tmp_path / str(number), universal_checkpoint_info={"affine_map": maps})
        with pytest.raises(UcpError, match=text):
            converted(source, tmp_path / "out.ucp")


def test_replicas_that_differ_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UcpError, match=r"'norm/\w+' differ"):
        converted(saved(tmp_path, same_norm=False), tmp_path / "out.ucp")


def test_a_missing_rank_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    (source / "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt").unlink()
    with pytest.raises(UcpError, match="zero_pp_rank_1_mp_rank_01_optim_states"):
        converted(source, tmp_path / "out.ucp")
