from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict, load

from tests.conversion.engine.jobs import write_files
from tests.conversion.formats.dcp.cases import Case, DcpCase
from tests.conversion.formats.dcp.stand_ins import spelled, stand_in
from ucpformat.conversion.dcp_files.files_out import ExportTensor, dcp_files
from ucpformat.conversion.engine import work_order
from ucpformat.conversion.formats.dcp import DcpDirectory, DcpObject, DcpTensor, KeyPath
from ucpformat.errors import UcpError
from ucpformat.tensor_files.stand_ins import NumpyArray, PathValue, TensorValue, TorchSize


def write_dcp(path: Path, *contents: Any, **options: Any) -> None:
    write_files(dcp_files(*contents, **options), path)


def exported(case: Case, path: Path, **options: Any) -> None:
    directory = DcpDirectory.open(case.path, shard_count=case.shard_count)
    tensors = {
        key: ExportTensor(tensor.dtype, tensor.shape, partial(directory.read_box, key))
        for key, tensor in directory.tensors.items()
    }
    objects = {key: directory.read_object(key) for key in directory.objects}
    items: list[DcpTensor | DcpObject] = [*directory.tensors.values(), *directory.objects.values()]
    paths = {item.key: item.path for item in items if item.path is not None}
    write_dcp(path, tensors, objects, paths, **options)


def loaded(path: Path) -> dict[str, Any]:
    """Everything in the directory, through torch's own reader and planner."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, FileSystemReader(path), planner=planner, no_dist=True)
    return state


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["fsdp_4", "fsdp_tp_2x2_flattened", "odd", "hf_whole", "single"])
def test_stock_torch_loads_what_was_written(dcp_case: DcpCase, tmp_path: Path, name: str) -> None:
    case = dcp_case(name)
    exported(case, tmp_path / "out")
    flat, _ = flatten_state_dict(loaded(tmp_path / "out"))
    assert flat.keys() == case.reference.keys() | case.objects.keys()
    for key, reference in case.reference.items():
        assert stand_in(flat[key]) == TensorValue(reference.dtype, reference.shape, reference.data), key
    for key, value in case.objects.items():
        assert spelled(stand_in(flat[key])) == spelled(stand_in(value)), key
        assert type(flat[key]) is type(value)


@pytest.mark.distributed
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_stock_load_into_a_state_dict(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("fsdp_2")
    exported(case, tmp_path / "out")
    model = {
        key.removeprefix("model."): torch.zeros(value.shape, dtype=getattr(torch, value.dtype))
        for key, value in case.reference.items()
        if key.startswith("model.")
    }
    state: dict[str, Any] = {"model": model, "step": 0, "optim": {"param_groups": [{"betas": None}]}}
    load(state, checkpoint_id=tmp_path / "out")
    assert state["step"] == 3
    assert state["optim"]["param_groups"][0]["betas"] == (0.9, 0.95)
    for key, value in model.items():
        assert stand_in(value).data == case.reference[f"model.{key}"].data


@pytest.mark.distributed
def test_large_tensors_are_written_in_boxes(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("single")
    exported(case, tmp_path / "out", box_bytes=300)
    back = DcpDirectory.open(tmp_path / "out")
    for key, tensor in back.tensors.items():
        reference = case.reference[key]
        assert len(tensor.fragments) >= len(reference.data) / 300
        out = np.zeros(len(reference.data), dtype=np.uint8)
        back.read_box(key, (0,) * len(tensor.shape), tensor.shape, out)
        assert out.tobytes() == reference.data
    assert (
        stand_in(loaded(tmp_path / "out")["model"]["embed.weight"]).data
        == case.reference["model.embed.weight"].data
    )


def test_no_box_is_larger_than_the_limit(tmp_path: Path) -> None:
    sizes: list[int] = []

    def read(offset: tuple[int, ...], shape: tuple[int, ...], out: Any) -> None:
        sizes.append(out.size)
        assert out.size == math.prod(shape) * 4
        out[:] = 0

    write_dcp(tmp_path / "out", {"w": ExportTensor("float32", (7, 1000), read)}, {}, {}, box_bytes=9000)
    assert sum(sizes) == 28000
    assert max(sizes) <= 9000


@pytest.mark.distributed
def test_several_files(dcp_case: DcpCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock torch finds each box in its file, the boxes of one tensor in several."""
    monkeypatch.setattr(work_order, "_MIN_BATCH", 500)
    case = dcp_case("single")
    exported(case, tmp_path / "out", box_bytes=300)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.distcp"))
    assert len(names) > 3
    assert "__0_0.distcp" in names
    flat, _ = flatten_state_dict(loaded(tmp_path / "out"))
    for key, reference in case.reference.items():
        assert stand_in(flat[key]) == TensorValue(reference.dtype, reference.shape, reference.data), key


def zeros(offset: tuple[int, ...], shape: tuple[int, ...], out: Any) -> None:
    out[:] = 0


W = {"w": ExportTensor("float32", (2,), zeros)}


@pytest.mark.parametrize(
    ("tensors", "objects", "paths", "code"),
    [
        (W, {"w": 1}, {}, "UCP-E-NAME"),
        (W, {}, {"w": ("a", "w")}, "UCP-E-NAME"),
        ({"w": ExportTensor("int4", (2,), zeros)}, {}, {}, "UCP-E-DTYPE"),
        (W, {"o": object()}, {}, "UCP-E-OBJECT"),
        (W, {"o": [PathValue("Path", "x")]}, {}, "UCP-E-OBJECT"),
    ],
)
def test_refusals(
    tmp_path: Path,
    tensors: Mapping[str, ExportTensor],
    objects: Mapping[str, object],
    paths: Mapping[str, KeyPath],
    code: str,
) -> None:
    with pytest.raises(UcpError) as caught:
        write_dcp(tmp_path / "out", tensors, objects, paths)
    assert caught.value.code == code
    assert not (tmp_path / "out" / ".metadata").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    write_dcp(tmp_path, W, {}, {})
    before = (tmp_path / ".metadata").read_bytes()
    with pytest.raises(UcpError) as caught:
        write_dcp(tmp_path, W, {}, {})
    assert caught.value.code == "UCP-E-EXISTS"
    assert (tmp_path / ".metadata").read_bytes() == before


def test_a_failed_write_is_not_a_checkpoint(tmp_path: Path) -> None:
    def fails(offset: tuple[int, ...], shape: tuple[int, ...], out: Any) -> None:
        raise OSError("no more")

    with pytest.raises(UcpError, match=r"UCP-E-STORE.*no more"):
        write_dcp(tmp_path / "out", {"w": ExportTensor("float32", (2,), fails)}, {}, {})
    with pytest.raises(UcpError):
        DcpDirectory.open(tmp_path / "out")


def test_stand_ins_become_torchs_things(tmp_path: Path) -> None:
    objects = {"size": TorchSize((1, 2)), "array": NumpyArray("<i2", (2,), b"\x01\x00\x02\x00")}
    write_dcp(tmp_path / "out", {}, objects, {})
    state = loaded(tmp_path / "out")
    assert type(state["size"]) is torch.Size
    assert state["array"].tolist() == [1, 2]
