"""Options of an optimizer are tagged once, and again wherever one has changed, also within."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ucpformat.replay.tracked import GroupOptions, options_of


def new() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=0.5)


def test_what_has_not_changed_is_not_tagged_again() -> None:
    options = GroupOptions(new())
    assert options.now() is options.now()


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (0.5, lambda options: options.update(it=0.25)),
        ((0.5, 0.75), lambda options: options.update(it=(0.5, 0.25))),
        ([0.5], lambda options: options["it"].append(0.25)),
        (([0.5],), lambda options: options["it"][0].append(0.25)),
        (torch.tensor([0.5, 0.75]), lambda options: options["it"].fill_(0.25)),
        (0.5, lambda options: options.update(another=0.5)),
        (0.5, lambda options: options.pop("it")),
        (0.5, lambda options: options.update(it=None)),
    ],
)
def test_any_change_is_seen(before: object, change: Any) -> None:
    optimizer = new()
    optimizer.param_groups[0]["it"] = before
    options = GroupOptions(optimizer)
    first = options.now()
    change(optimizer.param_groups[0])
    assert options.now() != first
    assert list(options.now()) == options_of(optimizer)


def test_another_group_is_seen() -> None:
    optimizer = new()
    options = GroupOptions(optimizer)
    options.now()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    assert len(options.now()) == 2
