"""Optimizers that number their parameters: named where the names are known, and numbered again on the way back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

import ucpformat as ucp
from tests.conversion.formats.torch_save.test_files import same
from tests.conversion.jobs import whole
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.torch_save.importer import import_torch_save
from ucpformat.conversion.formats.torch_save.numbering import numbered_optimizers
from ucpformat.errors import UcpError


def model(*, ambiguous: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    width = 4 if ambiguous else 6
    found = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Linear(4, width), torch.nn.Linear(width, 3)
    )
    found[2].register_buffer("count", torch.zeros(3 if ambiguous else 2))
    return found


def state(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    for _ in range(2):
        optimizer.zero_grad()
        module(torch.arange(5)).square().sum().backward()
        optimizer.step()
    return {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 1}


def grouped(module: torch.nn.Module) -> list[dict[str, Any]]:
    """Matrices decay and vectors do not: numbers are not in the order of the model."""
    parameters = list(module.parameters())
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def there_and_back(folder: Path, saved: dict[str, Any], **settings: str) -> dict[str, Any]:
    torch.save(saved, folder / "a.pt")
    convert_checkpoint(
        folder / "a.pt",
        folder / "c.ucp",
        source_format="torch-save",
        destination_format="ucp",
        source_settings=settings,
    )
    convert_checkpoint(
        folder / "c.ucp", folder / "b.pt", source_format="ucp", destination_format="torch-save"
    )
    back: dict[str, Any] = torch.load(folder / "b.pt", weights_only=True)
    return back


def check(
    folder: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]
) -> None:
    """Every state is a slot of its parameter, as torch itself says which is whose."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    checkpoint = ucp.open(folder / "c.ucp")
    for parameter, held in optimizer.state.items():
        for slot, tensor in held.items():
            assert checkpoint[names[id(parameter)]][slot].read().tolist() == tensor.tolist()
    groups = checkpoint.state.optimizers["optimizer"].groups
    assert [list(group.atoms) for group in groups] == [
        [names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups
    ]
    assert same(saved["optimizer"], torch.load(folder / "b.pt", weights_only=True)["optimizer"])
    optimizer.load_state_dict(torch.load(folder / "b.pt", weights_only=True)["optimizer"])


def test_names_that_the_optimizer_keeps(tmp_path: Path) -> None:
    module = model(ambiguous=True)
    named = dict(module.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [(n, p) for n, p in named.items() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [(n, p) for n, p in named.items() if p.ndim == 1]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    saved = state(module, optimizer)
    assert same(saved, there_and_back(tmp_path, saved))
    check(tmp_path, module, optimizer, saved)


def test_names_by_the_order_of_the_module(tmp_path: Path) -> None:
    module = model()
    optimizer = torch.optim.AdamW(grouped(module), lr=0.1)
    saved = state(module, optimizer)
    assert same(saved, there_and_back(tmp_path, saved, order="module"))
    check(tmp_path, module, optimizer, saved)


def test_optimizers_in_a_list_as_lightning_has_them(tmp_path: Path) -> None:
    module = model()
    optimizer = torch.optim.AdamW(grouped(module), lr=0.1)
    saved = state(module, optimizer)
    lightning = {"state_dict": saved["model"], "optimizer_states": [saved["optimizer"]], "epoch": 1}
    assert same(lightning, there_and_back(tmp_path, lightning, order="module"))
    with ucp.open(tmp_path / "c.ucp") as checkpoint:
        assert checkpoint.keys() == module.state_dict().keys()
        for name, parameter in module.named_parameters():
            for slot, tensor in optimizer.state[parameter].items():
                assert checkpoint[name][slot].read().tolist() == tensor.tolist()
        groups = checkpoint.state.optimizers["optimizer_states.0"].groups
        assert [list(group.atoms) for group in groups] == [
            ["0.weight", "1.weight", "2.weight"],
            ["1.bias", "2.bias"],
        ]


def test_without_a_word_they_keep_their_numbers(tmp_path: Path) -> None:
    module = model()
    saved = state(module, torch.optim.AdamW(grouped(module), lr=0.1))
    assert same(saved, there_and_back(tmp_path, saved))
    assert "optimizer.state.0.exp_avg" in ucp.open(tmp_path / "c.ucp")
    assert not ucp.open(tmp_path / "c.ucp").state.optimizers


def test_names_that_are_too_many_or_too_few_are_none(tmp_path: Path) -> None:
    module = model()
    for names in (["0.weight", "1.weight"], ["0.weight", "1.weight", "2.weight", "1.bias"]):
        saved = state(module, torch.optim.AdamW(grouped(module), lr=0.1))
        saved["optimizer"]["param_groups"][0]["param_names"] = names
        saved["optimizer"]["param_groups"][1]["param_names"] = ["1.bias", "2.bias"]
        folder = tmp_path / str(len(names))
        folder.mkdir()
        assert same(saved, there_and_back(folder, saved))
        assert "optimizer.state.0.exp_avg" in ucp.open(folder / "c.ucp")


@pytest.mark.parametrize("numbers", [[[0, 2]], [[1], [0]], [[0, 0]], [["a"]]])
def test_only_numbers_that_follow_one_another_are_those_of_parameters(numbers: list[Any]) -> None:
    listed: Any = {("optim", "param_groups", at, "params"): group for at, group in enumerate(numbers)}
    assert numbered_optimizers(listed) == {}
    assert numbered_optimizers({("optim", "param_groups", 0, "params"): [0, 1]}) == {("optim",): [[0, 1]]}


def test_an_order_that_leaves_a_choice_is_refused(tmp_path: Path) -> None:
    module = model(ambiguous=True)
    torch.save(state(module, torch.optim.SGD(list(module.parameters())[1:], momentum=0.9)), tmp_path / "a.pt")
    assert whole(import_torch_save(tmp_path / "a.pt"))
    # The buffer has the shape of the last bias, and the embedding's place may be empty.
    with pytest.raises(UcpError, match=r"may be|no parameters") as refusal:
        import_torch_save(tmp_path / "a.pt", order="module")
    assert refusal.value.code == "UCP-E-MISMATCH"
    with pytest.raises(UcpError, match="no order"):
        import_torch_save(tmp_path / "a.pt", order="alphabet")
    other = state(model(), torch.optim.SGD(model().parameters(), momentum=0.9))
    other["optimizer"]["state"] = {0: {"momentum_buffer": torch.zeros(9, 9)}}
    torch.save(other, tmp_path / "b.pt")
    with pytest.raises(UcpError, match="no parameters of these shapes"):
        import_torch_save(tmp_path / "b.pt", order="module")


def test_named_states_are_numbered_if_asked(tmp_path: Path) -> None:
    """What `get_optimizer_state_dict` names is loaded by a plain optimizer."""
    module = model()
    optimizer = torch.optim.AdamW(grouped(module), lr=0.1)
    plain = state(module, optimizer)
    named = {"model": get_model_state_dict(module), "optim": get_optimizer_state_dict(module, optimizer)}
    ucp.save(tmp_path / "c.ucp", named)
    convert_checkpoint(
        tmp_path / "c.ucp",
        tmp_path / "b.pt",
        source_format="ucp",
        destination_format="torch-save",
        settings={"numbered": "true"},
    )
    back = torch.load(tmp_path / "b.pt", weights_only=True)
    assert same(plain["optimizer"]["state"], dict(sorted(back["optim"]["state"].items())))
    assert [group["params"] for group in back["optim"]["param_groups"]] == [[0, 1, 2], [3, 4]]
    optimizer.load_state_dict(back["optim"])
    with pytest.raises(UcpError, match="none of true, false"):
        convert_checkpoint(
            tmp_path / "c.ucp",
            tmp_path / "x.pt",
            source_format="ucp",
            destination_format="torch-save",
            settings={"numbered": "yes"},
        )
