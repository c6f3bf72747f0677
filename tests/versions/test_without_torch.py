"""What must work with any version of anything that is installed: save, load, validate, Zarr, URLs, commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import ml_dtypes
import numpy as np
import pytest
import zarr
from awscrt.checksums import crc32c
from click.testing import CliRunner

import ucpformat as ucp
from tests.builders import BLOSC, GZIP, ZSTD
from ucpformat.cli import main
from ucpformat.errors import UcpError
from ucpformat.model.dtype import DTYPES
from ucpformat.tensor_files.torch_archive_writer import OutTensor, write_archive

COMPRESSORS = {"none": None, "gzip": GZIP, "zstd": ZSTD, "blosc": BLOSC, "auto": "auto"}
STORAGES: tuple[Literal["packed", "plain"], ...] = ("packed", "plain")


def state() -> dict[str, Any]:
    generator = np.random.default_rng(5)
    weight = generator.normal(size=(300, 40)).astype(np.float32)
    return {
        "model": {
            "weight": weight,
            "narrow": weight[:20].astype(ml_dtypes.bfloat16),
            "eight": weight[:7].astype(ml_dtypes.float8_e4m3fn),
            "count": np.array(3),
            "mask": weight[0] > 0,
        },
        "step": 12,
        "run": {"name": "münchen", "tags": ["a", "b"], "seen": 2**70},
    }


def run_ucp(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_what_was_saved_is_loaded(
    tmp_path: Path, storage: Literal["packed", "plain"], compressor: str
) -> None:
    saved: Any = state()
    path = tmp_path / "a.ucp"
    ucp.save(path, saved, storage=storage, compressor=COMPRESSORS[compressor])  # type: ignore[arg-type]
    assert ucp.validate(path) == []
    loaded = ucp.load(path)
    assert loaded["run"] == saved["run"]
    assert loaded["step"] == 12
    for name, array in saved["model"].items():
        assert loaded["model"][name].dtype == array.dtype
        assert loaded["model"][name].tobytes() == array.tobytes()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("compressor", ["none", "auto"])
def test_zarr_reads_either_storage(
    tmp_path: Path, storage: Literal["packed", "plain"], compressor: str
) -> None:
    saved = state()
    ucp.save(tmp_path / "a.ucp", saved, storage=storage, compressor=COMPRESSORS[compressor])  # type: ignore[arg-type]
    group: Any = zarr.open_group(ucp.zarr_store(tmp_path / "a.ucp"), mode="r")
    for name, array in saved["model"].items():
        assert group[name]["value"][...].tobytes() == array.tobytes()
    assert group["weight"]["value"][5:7, 3].tolist() == saved["model"]["weight"][5:7, 3].tolist()


def test_zarr_knows_every_data_type(tmp_path: Path) -> None:
    for name, entry in DTYPES.items():
        saved = np.arange(6).astype(np.uint8).astype(entry.numpy).reshape(2, 3)
        array = zarr.create_array(tmp_path / name, shape=(2, 3), dtype=entry.numpy, zarr_format=3)
        array[...] = saved
        found: Any = zarr.open_array(tmp_path / name, mode="r")[...]
        assert found.tobytes() == saved.tobytes()


@pytest.mark.parametrize("first", ["zarr", "ucpformat"])
def test_imports_do_not_warn(first: str) -> None:
    second = {"zarr": "ucpformat", "ucpformat": "zarr"}[first]
    program = f"import {first}, {second}, ucpformat.cli, ucpformat.zarr_view, ucpformat.validation"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_a_url_is_saved_loaded_and_never_replaced() -> None:
    """Of two that save to one URL, one commits: the put of the root is exclusive."""
    saved, url = state(), f"memory://{uuid4().hex}.ucp"
    ucp.save(url, saved)
    assert ucp.validate(url) == []
    assert ucp.load(url)["model"]["weight"].tobytes() == saved["model"]["weight"].tobytes()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        ucp.save(url, saved)


def test_damage_is_found(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", state())
    (pack,) = (tmp_path / "a.ucp").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[100] ^= 1
    pack.write_bytes(data)
    assert {problem.code for problem in ucp.validate(tmp_path / "a.ucp")} == {"UCP-E-CHECKSUM"}
    root = tmp_path / "a.ucp" / "ucp.json"
    root.write_text(root.read_text(encoding="utf-8").replace('"packed"', '"boxed"'), encoding="utf-8")
    assert {problem.code for problem in ucp.validate(tmp_path / "a.ucp")} == {"UCP-E-SCHEMA"}


def test_checksums_are_those_of_the_standard() -> None:
    """RFC 3720, appendix B.4, and the check value of CRC-32C."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_commands(tmp_path: Path) -> None:
    saved, path = state(), tmp_path / "a.ucp"
    ucp.save(path, saved)
    assert "valid" in run_ucp("validate", path)
    assert "weight" in run_ucp("inspect", path)
    assert '"weight"' in run_ucp("inspect", path, "--format", "json")
    assert "equal" in run_ucp("diff", path, path)
    with ucp.CheckpointManager(tmp_path / "run", keep_last=1) as manager:
        manager.save(3, saved)
    assert "3" in run_ucp("ls", tmp_path / "run")
    assert "dcp" in run_ucp("formats")
    assert all(command in run_ucp("--help") for command in ("convert", "plan", "gc"))


def test_files_of_torch_and_safetensors_go_in_and_out(tmp_path: Path) -> None:
    """Their checksums are made and compared, and torch is not needed."""
    weight = state()["model"]["weight"]
    tensor = OutTensor("float32", weight.shape, lambda: [weight.reshape(-1).view(np.uint8)])
    with (tmp_path / "a.pt").open("wb") as stream:
        write_archive(stream, {"model": {"weight": tensor}, "step": 7})
    run_ucp("convert", tmp_path / "a.pt", tmp_path / "a.ucp")
    assert ucp.load(tmp_path / "a.ucp")["model"]["weight"].tobytes() == weight.tobytes()
    ucp.save(tmp_path / "b.ucp", {"model": {"weight": weight}})
    run_ucp("convert", tmp_path / "b.ucp", tmp_path / "b.safetensors", "--to", "safetensors")
    run_ucp("convert", tmp_path / "b.safetensors", tmp_path / "c.ucp")
    with ucp.open(tmp_path / "c.ucp") as back:
        assert back["weight"]["value"][...].tobytes() == weight.tobytes()
