"""What ``import ucpformat as ucp`` offers, as the README and the design show it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import torch

import ucpformat as ucp
from ucpformat import declared
from ucpformat.errors import REGISTRY

TP8 = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 8),)), (ucp.Shard("tp", 0, "even"),))
W = np.arange(16 * 6, dtype=np.float32).reshape(16, 6)


def save(url: str | Path) -> None:
    state = {
        "model": {"x": W, "half": torch.arange(16, dtype=torch.bfloat16)},
        "optim": {"state": {"x": {"exp_avg": -W}}},
        "epoch": 3,
    }
    ucp.save(url, state)


@pytest.fixture(params=["local", "memory"])
def ckpt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ucp.Checkpoint]:
    """The same checkpoint on disk and behind an fsspec URL."""
    url = str(tmp_path / "c.ucp") if request.param == "local" else f"memory://{uuid4().hex}/c.ucp"
    save(url)
    assert ucp.validate(url) == []
    with ucp.open(url) as checkpoint:
        yield checkpoint


@pytest.mark.parametrize("name", ucp.__all__)
def test_every_name_exists_and_says_what_it_is(name: str) -> None:
    found = getattr(ucp, name)
    doc = inspect.getdoc(found)
    assert doc is not None
    assert not doc.startswith(f"{name}(")  # the signature that dataclasses write for themselves
    if inspect.isclass(found):
        for member, value in vars(found).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_names_are_sorted_and_complete() -> None:
    assert sorted(ucp.__all__) == ucp.__all__
    assert ucp.__version__
    for name in ucp.__all__:
        getattr(ucp, name)  # what loading one leaves behind counts too
    assert len(dir(ucp)) == len(set(dir(ucp)))
    public = {
        name
        for name in dir(ucp)
        if not name.startswith("_") and not inspect.ismodule(inspect.getattr_static(ucp, name))
    }
    assert public == set(ucp.__all__)


def test_a_slot_is_read_in_part(ckpt: ucp.Checkpoint) -> None:
    assert ckpt["x"]["exp_avg"][0:10].tolist() == (-W[0:10]).tolist()
    assert ckpt["x"]["value"][3, ::2].tolist() == W[3, ::2].tolist()
    assert set(ckpt["x"]) == {"value", "exp_avg"}
    assert ckpt.objects["epoch"] == 3


@pytest.mark.parametrize("coordinate", [0, 3, 7])
def test_a_layout_is_read_at_a_coordinate_into_what_one_has(ckpt: ucp.Checkpoint, coordinate: int) -> None:
    rows = slice(2 * coordinate, 2 * coordinate + 2)
    array = np.zeros((2, 6), dtype=np.float32)
    ckpt.read("x", layout=TP8, coord={"tp": coordinate}, out=array)
    assert array.tolist() == W[rows].tolist()
    tensor = torch.zeros(2, 6)
    ckpt.read("x", "exp_avg", layout=TP8, coord={"tp": coordinate}, out=tensor)
    assert tensor.tolist() == (-W[rows]).tolist()
    narrow = torch.zeros(2, dtype=torch.bfloat16)
    ckpt.read("half", layout=TP8, coord={"tp": coordinate}, out=narrow)
    assert narrow.tolist() == [2 * coordinate, 2 * coordinate + 1]
    fresh = ckpt.read("x", layout=TP8, coord={"tp": coordinate})
    assert fresh is not None
    assert fresh.tolist() == W[rows].tolist()


def test_saving_and_loading_behind_a_url() -> None:
    url = f"memory://{uuid4().hex}/c.ucp"
    save(url)
    state = {"model": {"x": torch.zeros(16, 6)}, "epoch": 0}
    ucp.load(url, state, only=["model.x", "epoch"])
    assert state["epoch"] == 3
    assert torch.equal(state["model"]["x"], torch.from_numpy(W))  # type: ignore[index]
    assert set(ucp.load(url)) == {"model", "optim", "epoch"}


def test_errors_have_a_code_a_place_and_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ucp.UcpError) as caught:
        ucp.open(tmp_path / "none")
    assert caught.value.code in REGISTRY
    assert caught.value.problem() == ucp.Problem(caught.value.code, caught.value.at, caught.value.message)
    save(tmp_path / "c")
    with ucp.open(tmp_path / "c") as ckpt, pytest.raises(KeyError, match="did you mean half"):
        _ = ckpt["halves"]


def test_zarr_opens_it(tmp_path: Path) -> None:
    import zarr

    save(tmp_path / "c")
    group = zarr.open_group(ucp.zarr_store(tmp_path / "c"), mode="r")
    array = group["x/value"]
    assert isinstance(array, zarr.Array)
    assert np.array_equal(np.asarray(array[2:4]), W[2:4])


def test_a_package_that_was_not_installed_saves_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(declared, "version", missing)
    declared._version.cache_clear()
    try:
        ucp.save(tmp_path / "a.ucp", {"x": np.ones(3, np.float32)})
    finally:
        declared._version.cache_clear()
    with ucp.open(tmp_path / "a.ucp") as checkpoint:
        assert checkpoint.root.producer is not None
        assert checkpoint.root.producer.version == "unknown"
