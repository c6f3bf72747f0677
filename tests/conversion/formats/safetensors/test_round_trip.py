"""Safetensors in and out: byte-identical through a checkpoint, as the library of that name reads and writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import ucpformat as ucp
from tests.conversion.engine.jobs import carry_out, run_job
from tests.conversion.jobs import job_of, whole
from ucpformat.conversion.contract.content import Content
from ucpformat.conversion.convert import convert_checkpoint, detect_format
from ucpformat.conversion.formats.safetensors.exporter import export_safetensors
from ucpformat.conversion.formats.safetensors.importer import import_safetensors
from ucpformat.errors import UcpError
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.model.values import encode
from ucpformat.tensor_files.stand_ins import TORCH_DTYPES

TYPES = [getattr(torch, name) for name in TORCH_DTYPES if name != "complex128"]


@st.composite
def state_dicts(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(
        st.lists(
            st.from_regex(r"[a-z]{1,3}(\.[0-9]{1,2})?(\.weight)?", fullmatch=True), unique=True, max_size=7
        )
    )
    found = {}
    for name in names:
        kind = draw(st.sampled_from(TYPES))
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        size = int(np.prod(shape)) * kind.itemsize
        data = draw(st.binary(min_size=size, max_size=size))
        if kind == torch.bool:
            data = bytes(byte & 1 for byte in data)
        array = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(0, dtype=torch.uint8)
        )
        found[name] = array.view(kind).reshape(shape)
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert tensor.shape == other[name].shape
        assert (
            tensor.contiguous().view(-1).view(torch.uint8).tolist()
            == other[name].contiguous().view(-1).view(torch.uint8).tolist()
        )


def test_tensors_of_a_file_are_aligned(tmp_path: Path) -> None:
    """Its header is a multiple of 8 bytes, and wide elements come first, so that a file can be mapped."""
    state = {f"{'a' * length}": np.zeros(3, np.uint8) for length in range(1, 6)}
    ucp.save(tmp_path / "run.ucp", {**state, "b": np.zeros(3, np.float64), "c": np.zeros(3, np.float16)})
    for length in range(1, 6):
        out = tmp_path / f"{length}.safetensors"
        convert_checkpoint(
            tmp_path / "run.ucp",
            out,
            source_format="ucp",
            destination_format="safetensors",
            drop=[f"{'a' * number}/value" for number in range(length + 1, 6)],
        )
        data = out.read_bytes()
        size = int.from_bytes(data[:8], "little")
        assert size % 8 == 0
        header = json.loads(data[8 : 8 + size])
        assert header["b"]["data_offsets"] == [0, 24]
        assert header["c"]["data_offsets"] == [24, 30]


@pytest.mark.parametrize(
    ("size", "files"), [("1000", 2), ("1KB", 2), ("1KiB", 1), ("1 k", 2), ("1024", 1), ("1MB", 1)]
)
def test_sizes_of_files_are_decimal_or_binary(tmp_path: Path, size: str, files: int) -> None:
    ucp.save(tmp_path / "run.ucp", {name: np.zeros(512, np.uint8) for name in ("a", "b")})
    convert_checkpoint(
        tmp_path / "run.ucp",
        tmp_path / "out",
        source_format="ucp",
        destination_format="safetensors",
        settings={"max_shard_size": size},
    )
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == files


def converted(source: Path, destination: Path, to: str, **more: Any) -> Any:
    return convert_checkpoint(
        source, destination, source_format=detect_format(source), destination_format=to, **more
    )


@given(state_dicts())
@settings(max_examples=30)
def test_every_tensor_of_every_type_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, state: dict[str, torch.Tensor]
) -> None:
    folder = tmp_path_factory.mktemp("st")
    (folder / "hf").mkdir()
    save_file(state, folder / "hf" / "model.safetensors", {"format": "pt", "made": "here"})
    converted(folder / "hf", folder / "c.ucp", "ucp")
    loaded = ucp.load(folder / "c.ucp", tensors="torch").get("model", {}) if state else {}
    same(state, loaded)
    converted(folder / "c.ucp", folder / "back", "safetensors", settings={"max_shard_size": "32B"})
    names = sorted(path.name for path in (folder / "back").glob("*.safetensors"))
    merged: dict[str, torch.Tensor] = {}
    for name in names:
        merged |= load_file(folder / "back" / name)
        with safe_open(folder / "back" / name, "pt") as opened:
            assert opened.metadata() == {"format": "pt", "made": "here"}
    same(state, merged)
    if len(names) > 1:
        index = json.loads((folder / "back" / "model.safetensors.index.json").read_bytes())
        assert index["weight_map"].keys() == state.keys()
        assert index["metadata"]["total_size"] == sum(t.numel() * t.itemsize for t in state.values())
    # One foreign format from the other, without a checkpoint in between, into one file.
    converted(folder / "back", folder / "one.safetensors", "safetensors")
    same(state, load_file(folder / "one.safetensors"))


def test_elements_of_less_than_a_byte(tmp_path: Path) -> None:
    packed = torch.arange(24, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).reshape(4, 6)
    save_file({"f4": packed}, tmp_path / "m.safetensors")
    job = import_safetensors(tmp_path / "m.safetensors", settings={})
    for parts in (1, 3, 4):
        found = whole(job, parts)["f4", "value"]
        assert found.shape == (4, 12)
        assert found.dtype == ml_dtypes.float4_e2m1fn
        assert (found.view(np.uint8).reshape(-1)[0::2] == np.arange(24) % 16).all()
    converted(tmp_path / "m.safetensors", tmp_path / "c.ucp", "ucp")
    converted(tmp_path / "c.ucp", tmp_path / "back.safetensors", "safetensors")
    back = load_file(tmp_path / "back.safetensors")["f4"]
    assert back.dtype == packed.dtype
    assert back.view(torch.uint8).tolist() == packed.view(torch.uint8).tolist()
    odd = job_of({"w": {"value": np.zeros(3, ml_dtypes.float4_e2m1fn)}})
    with pytest.raises(UcpError, match="odd number"):
        export_safetensors(Content(odd), tmp_path / "odd", settings={})


def test_six_bits_are_carried_as_bytes_and_come_back(tmp_path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F6_E2M3", "shape": [2, 8], "data_offsets": [0, 12]}}).encode()
    data = len(header).to_bytes(8, "little") + header + bytes(range(200, 212))
    (tmp_path / "m.safetensors").write_bytes(data)
    converted(tmp_path / "m.safetensors", tmp_path / "c.ucp", "ucp")
    assert ucp.open(tmp_path / "c.ucp")["w"]["value"].read().tobytes() == bytes(range(200, 212))
    converted(tmp_path / "c.ucp", tmp_path / "back.safetensors", "safetensors")
    with safe_open(tmp_path / "back.safetensors", "np") as opened:
        assert (opened.get_slice("w").get_dtype(), opened.get_slice("w").get_shape()) == ("F6_E2M3", [2, 8])
    assert (tmp_path / "back.safetensors").read_bytes().endswith(bytes(range(200, 212)))
    with pytest.raises(UcpError, match="6-bit"):
        import_safetensors(tmp_path / "m.safetensors", settings={"map": "llama-megatron"})


def test_files_beside_the_weights_are_carried_and_others_named(tmp_path: Path) -> None:
    source = tmp_path / "hf"
    (source / "onnx").mkdir(parents=True)
    save_file({"w": torch.ones(2)}, source / "model.safetensors")
    (source / "config.json").write_text('{"hidden_size": 2}')
    (source / "tokenizer.model").write_bytes(b"\0\1\2")
    (source / "pytorch_model.bin").write_bytes(b"never read")
    with pytest.raises(UcpError, match=r"files/onnx|files/pytorch_model.bin"):
        converted(source, tmp_path / "c.ucp", "ucp")
    report = converted(source, tmp_path / "c.ucp", "ucp", drop=["files/onnx", "files/*.bin"])
    assert sorted(lost.what for lost in report.dropped) == ["files/onnx", "files/pytorch_model.bin"]
    converted(tmp_path / "c.ucp", tmp_path / "back", "safetensors")
    assert (tmp_path / "back/config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (tmp_path / "back/tokenizer.model").read_bytes() == b"\0\1\2"
    assert {path.name for path in (tmp_path / "back").iterdir()} == {
        "model.safetensors",
        "config.json",
        "tokenizer.model",
    }


def training_state() -> Any:
    wide = np.asarray([1.0, 2.0009765625, 3.0], np.float32)
    return job_of(
        {
            "w": {
                "value": wide.astype(ml_dtypes.bfloat16),
                "master": wide,
                "exp_avg": np.zeros(3, np.float32),
            },
            "b": {"value": np.ones(2, np.float32)},
            "s": {"exp_avg": np.ones(2, np.float32)},
        },
        aliases={"b": ["tied"]},
        state=StateDocument(
            {"lr": encode(0.5, at="")}, {"optim": Optimizer((ParameterGroup(("w",), {}),))}, {}
        ),
    )


def test_only_weights_go_out_and_the_rest_is_told(tmp_path: Path) -> None:
    run_job(training_state(), tmp_path / "c.ucp", storage="plain")
    rest = ["*/exp_avg", "values/lr", "optimizers/optim"]
    with pytest.raises(UcpError) as refusal:
        converted(tmp_path / "c.ucp", tmp_path / "x", "safetensors", drop=rest)
    assert "w/master" in refusal.value.message
    assert not (tmp_path / "x").exists()
    converted(tmp_path / "c.ucp", tmp_path / "v.safetensors", "safetensors", drop=[*rest, "*/master"])
    found = load_file(tmp_path / "v.safetensors")
    assert found["w"].dtype == torch.bfloat16
    assert found.keys() == {"w", "b", "tied"}
    converted(
        tmp_path / "c.ucp",
        tmp_path / "m.safetensors",
        "safetensors",
        drop=[*rest, "w/value"],
        settings={"slot": "master", "aliases": "leave"},
    )
    found = load_file(tmp_path / "m.safetensors")
    assert found.keys() == {"w", "b"}
    assert found["w"].tolist() == [1.0, 2.0009765625, 3.0]
    report = converted(
        tmp_path / "c.ucp",
        tmp_path / "h.safetensors",
        "safetensors",
        drop=[*rest, "w/value"],
        settings={"slot": "master", "dtype": "float16"},
    )
    found = load_file(tmp_path / "h.safetensors")
    assert {tensor.dtype for tensor in found.values()} == {torch.float16}
    assert report.cast == {"b/value": "float16", "w/value": "float16"}


@pytest.mark.parametrize(
    "setting",
    [
        {"max_shard_size": "0"},
        {"max_shard_size": "much"},
        {"slot": "best"},
        {"aliases": "some"},
        {"dtype": "int8"},
    ],
)
def test_settings_that_mean_nothing_are_refused(tmp_path: Path, setting: dict[str, str]) -> None:
    with pytest.raises(UcpError) as refusal:
        export_safetensors(Content(training_state()), tmp_path / "x", settings=setting)
    assert refusal.value.code in ("UCP-E-MISMATCH", "UCP-E-DTYPE")


def test_what_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    job = job_of({"a": {"value": np.ones(3, np.float32)}, "b": {"value": np.asarray([1e9], np.float32)}})
    plan = export_safetensors(
        Content(job), tmp_path / "x", settings={"dtype": "float16", "max_shard_size": "1B"}
    )
    with pytest.raises(UcpError, match="leave the range"):
        carry_out(plan, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    path = tmp_path / "x.safetensors"
    with pytest.raises(UcpError, match="leave the range"):
        carry_out(export_safetensors(Content(job), path, settings={"dtype": "float16"}), path)
    assert not (tmp_path / "x.safetensors").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    for taken in ("taken", "taken/file.safetensors"):
        (tmp_path / "taken" / "file.safetensors").touch()
        with pytest.raises(UcpError) as refusal:
            carry_out(export_safetensors(Content(job), tmp_path / taken, settings={}), tmp_path / taken)
        assert refusal.value.code == "UCP-E-EXISTS"


def test_the_step_and_blobs_without_a_place(tmp_path: Path) -> None:
    job = job_of(
        {"w": {"value": np.ones(3, np.float32)}},
        blobs={"../x": ("text/plain", b""), "ok": ("text/plain", b"1")},
    )

    job = replace(job, step=12)
    plan = export_safetensors(Content(job), tmp_path / "x", settings={})
    assert [lost.what for lost in plan.dropped] == ["blobs/../x"]
    carry_out(plan, tmp_path / "x")
    assert import_safetensors(tmp_path / "x", settings={}).step == 12
    plan = export_safetensors(Content(job), tmp_path / "x.safetensors", settings={})
    assert [lost.what for lost in plan.dropped] == ["blobs/../x", "blobs/ok"]
    wide = job_of({"w": {"value": np.ones(3, np.complex128)}})
    with pytest.raises(UcpError) as refusal:
        export_safetensors(Content(wide), tmp_path / "y", settings={})
    assert refusal.value.code == "UCP-E-DTYPE"
