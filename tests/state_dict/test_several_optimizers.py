"""Optimizers that share a module: their states are those that torch says of each, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint import state_dict as torch_names

import ucpformat
from ucpformat.state_dict.stateful import state_to_save, unwrapped

KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def job(kinds: list[str], groups: int = 1) -> dict[str, Any]:
    """A layer for each kind of optimizer, with its parameters in so many groups."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2, 2) for _ in kinds]
    optimizers = {
        f"optim{number}": KINDS[kind]([{"params": [one]} for one in layer.parameters()][:groups])
        for number, (kind, layer) in enumerate(zip(kinds, layers, strict=True))
    }
    return {"model": torch.nn.Sequential(*layers), **optimizers}


def same(one: Any, two: Any) -> bool:
    """Whether two nested states are equal, tensors by every element."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


def optimizers_of(state: dict[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in state.items() if key != "model"}


@given(
    kinds=st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=4),
    groups=st.sampled_from([1, 2]),
    steps=st.integers(0, 2),
    fresh=st.integers(0, 3),
    gradients=st.integers(0, 3),
)
def test_states_are_those_that_torch_says_of_each(
    kinds: list[str], groups: int, steps: int, fresh: int, gradients: int
) -> None:
    """Some have stepped, one is fresh, one has gradients and was not stepped yet."""
    state = job(kinds, groups)
    for _ in range(steps):
        state["model"](torch.ones(1, 2)).square().sum().backward()
        for number, one in enumerate(optimizers_of(state).values()):
            if number != fresh:
                one.step()
            one.zero_grad()
    if gradients < len(kinds):
        for one in state["model"][gradients].parameters():
            one.grad = torch.ones_like(one)
    before = {key: one.detach().clone() for key, one in state["model"].named_parameters()}
    had_states = {key: bool(one.state) for key, one in optimizers_of(state).items()}
    found = state_to_save(state)
    assert same(before, {key: one.detach() for key, one in state["model"].named_parameters()})
    for key, one in optimizers_of(state).items():
        assert bool(one.state) == had_states[key]
        torch_says: Any = torch_names.get_optimizer_state_dict(state["model"], one)
        if had_states[key]:
            assert same(found[key], torch_says)
        else:  # which makes a step, that is not counted here
            assert found[key]["param_groups"] == torch_says["param_groups"]
            assert found[key]["state"].keys() == torch_says["state"].keys()


@pytest.mark.parametrize("is_fresh", [False, True])
def test_names_are_looked_up_as_often_for_many_optimizers_as_for_one(is_fresh: bool) -> None:
    def lookups(state: dict[str, Any]) -> int:
        if not is_fresh:
            state["model"](torch.ones(1, 2)).square().sum().backward()
            for one in optimizers_of(state).values():
                one.step()
                one.zero_grad()
        with patch.object(torch_names, "_get_fqns", wraps=torch_names._get_fqns) as looked:
            unwrapped(state)
        return looked.call_count

    many = job(["AdamW"] * 12, 2)
    one = {"model": many["model"], "optim": torch.optim.AdamW(many["model"].parameters())}
    assert lookups(one) == lookups(many)


def test_a_fresh_job_takes_up_what_many_optimizers_had(tmp_path: Path) -> None:
    saved = job(["AdamW", "momentum", "SGD", "AdamW"], 2)
    for _ in range(3):
        saved["model"](torch.ones(1, 2)).square().sum().backward()
        for one in optimizers_of(saved).values():
            one.step()
            one.zero_grad()
    ucpformat.save(tmp_path / "s", saved)
    loaded = job(["AdamW", "momentum", "SGD", "AdamW"], 2)
    with torch.no_grad():
        for one in loaded["model"].parameters():
            one.zero_()
    ucpformat.load(tmp_path / "s", loaded)
    for key, one in optimizers_of(saved).items():
        assert same(one.state_dict(), loaded[key].state_dict())
    assert same(saved["model"].state_dict(), loaded["model"].state_dict())
