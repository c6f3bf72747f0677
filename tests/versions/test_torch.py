"""What must work with any torch: its own checkpoints in and out, state dicts, modules, and saves in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.distributed import checkpoint

import ucpformat as ucp
from tests.processes import launch
from ucpformat.cli import main
from ucpformat.integrations.torch_dcp import UcpStorageReader, UcpStorageWriter

dcp: Any = checkpoint

# Torch's own: of DCP in a process that is alone, and of what DCP up to 2.8 asks tensors for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),
]


def run_ucp(*arguments: object) -> None:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 4).to(torch.bfloat16))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    step(net, optimizer)
    return net, optimizer


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    first, second = net.children()
    second(first(torch.ones(2, 40)).to(torch.bfloat16)).float().square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {
        "model": net.state_dict(),
        "optim": optimizer.state_dict(),
        "step": 5,
        "run": {"tags": ("a", None)},
    }


def zeros(tree: Any) -> Any:
    """As ``tree``, with nothing in its tensors and numbers."""
    if isinstance(tree, torch.Tensor):
        return torch.zeros_like(tree)
    if isinstance(tree, dict):
        return {name: zeros(value) for name, value in tree.items()}
    return [zeros(value) for value in tree] if isinstance(tree, list) else None


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_a_stock_save_is_converted_and_stock_load_takes_it_back(tmp_path: Path) -> None:
    saved = state_of(*trained())
    dcp.save(saved, checkpoint_id=tmp_path / "a.dcp")
    run_ucp("convert", tmp_path / "a.dcp", tmp_path / "a.ucp")
    assert ucp.validate(tmp_path / "a.ucp") == []
    run_ucp("convert", tmp_path / "a.ucp", tmp_path / "b.dcp", "--to", "dcp")
    for folder in ("a.dcp", "b.dcp"):
        loaded = zeros(saved)
        dcp.load(loaded, checkpoint_id=tmp_path / folder)
        assert same(loaded, saved)


def test_a_file_of_torch_save_goes_in_and_out(tmp_path: Path) -> None:
    saved = state_of(*trained())
    torch.save(saved, tmp_path / "a.pt")
    run_ucp("convert", tmp_path / "a.pt", tmp_path / "a.ucp")
    run_ucp("convert", tmp_path / "a.ucp", tmp_path / "b.pt", "--to", "torch-save")
    assert same(torch.load(tmp_path / "b.pt", weights_only=True), saved)


def test_modules_and_optimizers_resume(tmp_path: Path) -> None:
    net, optimizer = trained()
    ucp.save(tmp_path / "a.ucp", {"model": net, "optim": optimizer, "step": 5})
    step(net, optimizer)
    other, its = trained()
    for parameter in other.parameters():
        parameter.data.zero_()
    assert ucp.load(tmp_path / "a.ucp", {"model": other, "optim": its, "step": 0})["step"] == 5
    step(other, its)
    assert same(other.state_dict(), net.state_dict())


def test_a_save_in_the_background_has_what_was_there(tmp_path: Path) -> None:
    net, optimizer = trained()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    saving = ucp.async_save(tmp_path / "a.ucp", {"model": net.state_dict()})
    step(net, optimizer)
    saving.wait()
    assert same(ucp.load(tmp_path / "a.ucp", tensors="torch")["model"], before)


def test_dcp_writes_and_reads_our_format(tmp_path: Path) -> None:
    saved = state_of(*trained())
    dcp.save(saved, storage_writer=UcpStorageWriter(tmp_path / "a.ucp"))
    assert ucp.validate(tmp_path / "a.ucp") == []
    loaded = zeros(saved)
    dcp.load(loaded, storage_reader=UcpStorageReader(tmp_path / "a.ucp"))
    assert same(loaded, saved)


@pytest.mark.distributed
def test_fsdp_saves_on_two_ranks_and_resumes_on_three(tmp_path: Path) -> None:
    """What this package and what stock DCP saved."""
    launch("tests.versions.fsdp_worker", [str(tmp_path), "save"], 2)
    run_ucp("convert", tmp_path / "a.dcp", tmp_path / "b.ucp")
    launch("tests.versions.fsdp_worker", [str(tmp_path), "load"], 3)
