"""What must work with any TensorStore and safetensors: they read what is written, and the other way round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import tensorstore
from click.testing import CliRunner

import ucpformat as ucp
from ucpformat.cli import main


def run_ucp(*arguments: object) -> None:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def weight() -> Any:
    return np.random.default_rng(7).normal(size=(30, 40)).astype(np.float32)


def test_tensorstore_reads_storage_plain(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"model": {"weight": weight()}}, storage="plain", compressor="auto")
    place = tmp_path / "a.ucp" / "atoms" / "weight" / "value"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{place}/"}}
    found = tensorstore.open(spec, open=True, read=True).result().read().result()
    assert found.tobytes() == weight().tobytes()


def test_orbax_trees_go_out_and_in(tmp_path: Path) -> None:
    """By TensorStore, in the format that Orbax has."""
    ucp.save(tmp_path / "a.ucp", {"model": {"weight": weight()}})
    run_ucp("convert", tmp_path / "a.ucp", tmp_path / "a.orbax", "--to", "orbax")
    run_ucp("convert", tmp_path / "a.orbax", tmp_path / "b.ucp")
    with ucp.open(tmp_path / "b.ucp") as back:
        (atom,) = back.values()
        assert atom["value"][...].tobytes() == weight().tobytes()


def test_safetensors_out_and_in(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a.ucp", {"model": {"weight": weight()}})
    run_ucp("convert", tmp_path / "a.ucp", tmp_path / "a.safetensors", "--to", "safetensors")
    (file,) = [
        place for place in (tmp_path / "a.safetensors", *tmp_path.rglob("*.safetensors")) if place.is_file()
    ][:1]
    assert safetensors.numpy.load_file(file)["weight"].tobytes() == weight().tobytes()
    safetensors.numpy.save_file({"weight": weight()}, tmp_path / "theirs.safetensors")
    run_ucp("convert", tmp_path / "theirs.safetensors", tmp_path / "b.ucp")
    with ucp.open(tmp_path / "b.ucp") as back:
        assert back["weight"]["value"][...].tobytes() == weight().tobytes()
