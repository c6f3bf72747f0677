from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from tests.conversion.formats.dcp.cases import ALL_CASES, Case, DcpCase
from tests.conversion.formats.dcp.stand_ins import spelled, stand_in
from tests.conversion.formats.dcp.strategies import boxes_of, index_of
from ucpformat.conversion.formats.dcp import DcpDirectory, detect
from ucpformat.errors import UcpError
from ucpformat.tensor_files.stand_ins import item_size

pytestmark = pytest.mark.distributed
KINDS = {"hf": "hugging-face"}


def opened(case: Case) -> DcpDirectory:
    return DcpDirectory.open(case.path, shard_count=case.shard_count)


def read(directory: DcpDirectory, key: str, offset: tuple[int, ...], shape: tuple[int, ...]) -> bytes:
    out = np.full(math.prod(shape) * item_size(directory.tensors[key].dtype), 0xA5, dtype=np.uint8)
    directory.read_box(key, offset, shape, out)
    return out.tobytes()


def copied(case: Case, tmp_path: Path) -> Path:
    return Path(shutil.copytree(case.path, tmp_path / "copy"))


def refusal(path: Path, **options: Any) -> UcpError:
    with pytest.raises(UcpError) as caught:
        DcpDirectory.open(path, **options)
    return caught.value


@pytest.mark.parametrize("name", ALL_CASES)
def test_every_tensor_and_object_equals_the_reference(dcp_case: DcpCase, name: str) -> None:
    case = dcp_case(name)
    assert detect(case.path)
    directory = opened(case)
    assert directory.tensors.keys() == case.reference.keys()
    for key, reference in case.reference.items():
        tensor = directory.tensors[key]
        assert (tensor.dtype, tensor.shape) == (reference.dtype, reference.shape)
        assert read(directory, key, (0,) * len(tensor.shape), tensor.shape) == reference.data, key
        directory.verify(key)
    assert directory.objects.keys() == case.objects.keys()
    for key, value in case.objects.items():
        assert spelled(directory.read_object(key)) == spelled(stand_in(value)), key
        directory.verify(key)


@pytest.mark.parametrize("name", ALL_CASES)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_box_equals_the_slice(dcp_case: DcpCase, name: str, data: st.DataObject) -> None:
    case = dcp_case(name)
    directory = opened(case)
    key = data.draw(st.sampled_from(sorted(case.reference)))
    reference = case.reference[key]
    full = np.frombuffer(reference.data, dtype=f"V{item_size(reference.dtype)}").reshape(reference.shape)
    offset, shape = data.draw(boxes_of(reference.shape))
    assert read(directory, key, offset, shape) == full[index_of(offset, shape)].tobytes()


def test_paths_are_the_planners(dcp_case: DcpCase) -> None:
    directory = opened(dcp_case("fsdp_4"))
    assert directory.tensors["model.up.weight"].path == ("model", "up.weight")
    assert directory.tensors["optim.state.up.weight.exp_avg"].path == (
        "optim",
        "state",
        "up.weight",
        "exp_avg",
    )
    assert directory.objects["optim.param_groups.1.lr"].path == ("optim", "param_groups", 1, "lr")
    flattened = opened(dcp_case("fsdp_tp_2x2_flattened"))
    assert flattened.tensors["optim.state.up.weight.exp_avg"].path == ("optim", "state.up.weight.exp_avg")


def test_uneven_empty_and_strided_shards_are_what_the_cases_hold(dcp_case: DcpCase) -> None:
    """The cases would prove nothing if torch had not stored what they are named for."""
    tensors = opened(dcp_case("fsdp_4")).tensors
    assert [part.shape for part in tensors["model.embed.weight"].fragments] == [(26, 16)] * 3 + [(23, 16)]
    assert len(tensors["model.three"].fragments) == 3  # rank 3 has none
    assert tensors["model.scale"].shape == ()
    up = opened(dcp_case("fsdp_tp_2x2")).tensors["model.up.weight"]
    assert sorted(part.offset for part in up.fragments) == [(0, 0), (8, 0), (16, 0), (24, 0)]
    assert len({part.location.file for part in up.fragments}) == 4
    down = opened(dcp_case("fsdp_tp_2x2")).tensors["model.down.weight"]
    assert {part.shape for part in down.fragments} == {(8, 16)}


def test_objects_that_differ_by_rank_are_all_kept(dcp_case: DcpCase) -> None:
    directory = opened(dcp_case("fsdp_4_per_rank_rng"))
    assert directory.kind == "dcp-per-rank"
    assert [directory.read_object("rng.rank", rank=rank) for rank in range(4)] == [
        f"rank {r}" for r in range(4)
    ]
    assert len(directory.objects["rng.python"].locations) == 1


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_missing_rank_is_refused(dcp_case: DcpCase, tmp_path: Path, rank: int) -> None:
    path = copied(dcp_case("fsdp_4_per_rank"), tmp_path)
    (path / f"__{rank}.metadata").unlink()
    problem = refusal(path)
    assert (problem.code, problem.at) == ("UCP-E-SOURCE", f"__{rank}.metadata")
    (path / f"__{rank}_0.distcp").unlink()
    assert refusal(path).code == "UCP-E-SOURCE"


def test_copies_that_differ_are_refused(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("hsdp_2x2_per_rank"), tmp_path)
    place = max(
        DcpDirectory.open(path).tensors["model.embed.weight"].fragments, key=lambda part: part.location.length
    ).location
    data = bytearray((path / place.file).read_bytes())
    data[place.start + place.length // 2] ^= 1
    (path / place.file).write_bytes(data)
    assert "differ" in refusal(path).message


def test_metadata_of_two_saves_are_refused(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_4_per_rank"), tmp_path)
    shutil.copy(path / "__0.metadata", path / ".metadata")
    assert "side by side" in refusal(path).message


def test_one_ranks_metadata_alone_are_not_the_checkpoint(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_4_per_rank"), tmp_path)
    (path / "__0.metadata").rename(path / ".metadata")
    for rank in (1, 2, 3):
        (path / f"__{rank}.metadata").unlink()
    problem = refusal(path)
    assert problem.code == "UCP-E-SOURCE"
    assert "not stored completely" in problem.message


@pytest.mark.parametrize(
    "name", ["fsdp_4", "fsdp_4_files", "fsdp_4_zstd", "hf_whole", "hf_consolidated_4", "hf_shards_4"]
)
def test_missing_and_truncated_files(dcp_case: DcpCase, tmp_path: Path, name: str) -> None:
    case = dcp_case(name)
    path = copied(case, tmp_path)
    files = sorted(file for file in path.rglob("*") if file.suffix in (".distcp", ".safetensors"))
    for file in [files[0], files[-1]]:
        content = file.read_bytes()
        file.unlink()
        assert refusal(path, shard_count=case.shard_count).code == "UCP-E-SOURCE"
        file.write_bytes(content[:-1])
        assert refusal(path, shard_count=case.shard_count).code == "UCP-E-SOURCE"
        file.write_bytes(content)
    DcpDirectory.open(path, shard_count=case.shard_count)


def test_a_truncated_metadata_file(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_2"), tmp_path)
    data = (path / ".metadata").read_bytes()
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        (path / ".metadata").write_bytes(data[:length])
        problem = refusal(path)
        assert problem.code == "UCP-E-PICKLE"
        assert problem.at == ".metadata"
    (path / ".metadata").rename(path / ".metadata.tmp")
    problem = refusal(path)
    assert (problem.code, problem.at) == ("UCP-E-SOURCE", ".metadata")
    assert detect(path), "by the data that are left, so that what is missing is named"


def test_damage_in_compressed_items(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("fsdp_4_zstd")
    path = copied(case, tmp_path)
    place = DcpDirectory.open(path).tensors["model.embed.weight"].fragments[0].location
    assert place.transforms == ("stream.zstd/1",)
    data = bytearray((path / place.file).read_bytes())
    data[place.start : place.start + 4] = b"none"
    (path / place.file).write_bytes(data)
    with pytest.raises(UcpError) as caught:
        read(DcpDirectory.open(path), "model.embed.weight", (0, 0), (101, 16))
    assert caught.value.code == "UCP-E-SOURCE"
    assert caught.value.at == place.file


def edited(path: Path, edit: Any) -> None:
    """Change the metadata through torch's own classes (our own file, so unpickling is safe)."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    edit(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("../__0_0.distcp", "UCP-E-KEY"),
        ("a/../../__0_0.distcp", "UCP-E-KEY"),
        ("/etc/hostname", "UCP-E-KEY"),
        ("C:\\x", "UCP-E-KEY"),
        ("..\\x", "UCP-E-KEY"),
        ("", "UCP-E-KEY"),
        ("x\0y", "UCP-E-KEY"),
        ("link", "UCP-E-LINK"),
        ("folder", "UCP-E-LINK"),
        ("pipe", "UCP-E-LINK"),
        ("nothing", "UCP-E-SOURCE"),
    ],
)
def test_names_that_leave_the_directory(dcp_case: DcpCase, tmp_path: Path, file: str, code: str) -> None:
    path = copied(dcp_case("fsdp_2"), tmp_path)
    (tmp_path / "outside").write_bytes(b"x" * 1000000)
    (path / "link").symlink_to(tmp_path / "outside")
    (path / "folder").mkdir()
    os.mkfifo(path / "pipe")

    def edit(metadata: Any) -> None:
        for place in metadata.storage_data.values():
            place.relative_path = file

    edited(path, edit)
    assert refusal(path).code == code


def test_a_link_inside_the_directory_is_followed(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_2"), tmp_path)
    (path / "__0_0.distcp").rename(path / "renamed")
    (path / "__0_0.distcp").symlink_to("renamed")
    assert len(DcpDirectory.open(path).tensors) > 10


def test_metadata_that_lie(dcp_case: DcpCase, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import MetadataIndex

    def key(metadata: Any) -> Any:
        return metadata.state_dict_metadata["model.embed.weight"]

    def drop_piece(m: Any) -> None:
        key(m).chunks.pop()

    def double_piece(m: Any) -> None:
        key(m).chunks[0].sizes = type(key(m).size)((52, 16))

    def grow(m: Any) -> None:
        key(m).size = type(key(m).size)((102, 16))

    def drop_place(m: Any) -> None:
        del m.storage_data[MetadataIndex("model.embed.weight", (0, 0))]

    def drop_key(m: Any) -> None:
        del m.state_dict_metadata["model.embed.weight"]

    def move(m: Any) -> None:
        m.storage_data[MetadataIndex("model.embed.weight", (0, 0))].offset += 1 << 40

    def transform(m: Any) -> None:
        m.storage_data[MetadataIndex("model.embed.weight", (0, 0))].transform_descriptors = ["stream.rot13/1"]

    def version(m: Any) -> None:
        m.version = "2.0.0"

    for number, edit in enumerate(
        [drop_piece, double_piece, grow, drop_place, drop_key, move, version, transform]
    ):
        path = copied(dcp_case("fsdp_2"), tmp_path / str(number))
        edited(path, edit)
        with pytest.raises(UcpError) as caught:
            read(DcpDirectory.open(path), "model.embed.weight", (0, 0), (101, 16))
        assert caught.value.code == "UCP-E-SOURCE", edit


def test_a_data_type_that_lies(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_2"), tmp_path)

    def edit(metadata: Any) -> None:
        metadata.state_dict_metadata["model.embed.weight"].properties.dtype = torch.int32

    edited(path, edit)
    with pytest.raises(UcpError, match="the metadata say int32") as caught:
        read(DcpDirectory.open(path), "model.embed.weight", (0, 0), (101, 16))
    assert caught.value.code == "UCP-E-SOURCE"

    def unsupported(metadata: Any) -> None:
        metadata.state_dict_metadata["model.embed.weight"].properties.dtype = torch.complex32

    edited(path, unsupported)
    assert refusal(path).code == "UCP-E-DTYPE"


class Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_metadata_that_run_code(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("fsdp_2"), tmp_path)
    mark = tmp_path / "ran"

    def edit(metadata: Any) -> None:
        metadata.planner_data = {"x": Attack(mark)}

    metadata = pickle.loads((path / ".metadata").read_bytes())
    edit(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    problem = refusal(path)
    assert (problem.code, problem.at) == ("UCP-E-PICKLE", ".metadata")
    assert "posix.mkdir" in problem.message
    assert detect(path)
    assert not mark.exists()


def test_wrong_requests(dcp_case: DcpCase) -> None:
    directory = opened(dcp_case("fsdp_2"))
    out = np.zeros(64, dtype=np.uint8)
    for key, offset, shape in [
        ("nothing", (0,), (1,)),
        ("model.embed.weight", (0,), (1,)),
        ("model.embed.weight", (101, 0), (1, 16)),
        ("model.embed.weight", (-1, 0), (1, 16)),
        ("model.embed.weight", (0, 0), (2, 16)),
        ("lr_scheduler.last_epoch", (), ()),
    ]:
        with pytest.raises(UcpError) as caught:
            directory.read_box(key, offset, shape, out)
        assert caught.value.code == "UCP-E-MISMATCH"
    with pytest.raises(UcpError):
        directory.read_object("model.embed.weight")


def test_other_places_are_not_dcp(tmp_path: Path) -> None:
    assert not detect(tmp_path)
    assert not detect(tmp_path / "nothing")
    assert refusal(tmp_path).code == "UCP-E-SOURCE"
    assert refusal(tmp_path / "nothing").code == "UCP-E-SOURCE"
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"\xff" * 20)
    assert not detect(tmp_path)


def test_shards_without_proof_are_refused(dcp_case: DcpCase, tmp_path: Path) -> None:
    case = dcp_case("hf_shards_4")
    assert "shard_count" in refusal(case.path).message
    assert refusal(case.path, shard_count=5).code == "UCP-E-SOURCE"
    assert refusal(case.path, shard_count=3).code == "UCP-E-SOURCE"
    path = copied(case, tmp_path)
    (path / "shard-00004-model-00001-of-00001.safetensors").unlink()
    assert refusal(path, shard_count=4).code == "UCP-E-SOURCE"
    assert refusal(path).code == "UCP-E-SOURCE"


def test_consolidated_files_prove_or_disprove_the_shards(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("hf_consolidated_4"), tmp_path)
    for file in path.glob("sharded/shard-00004-*"):
        file.unlink()
    assert "another shape" in refusal(path).message
    for file in path.glob("sharded/*"):
        file.unlink()
    assert DcpDirectory.open(path).tensors["embed.weight"].shape == (101, 16)  # the consolidated files alone


def test_an_index_that_disagrees(dcp_case: DcpCase, tmp_path: Path) -> None:
    path = copied(dcp_case("hf_whole"), tmp_path)
    index = path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["more"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(document))
    assert "index" in refusal(path).message
    index.unlink()
    assert len(DcpDirectory.open(path).tensors) == len(dcp_case("hf_whole").reference)
    (path / "model-00001-of-00002.safetensors").unlink()
    assert "file 1" in refusal(path).message
