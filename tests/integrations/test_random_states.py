"""Random generators in checkpoints: they go on where as many ranks load as saved, and never without a word."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

import ucpformat
from ucpformat.integrations.random_states import fill_random_states, random_states


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


def test_generators_go_on_where_they_were(tmp_path: Path) -> None:
    drawn()
    ucpformat.save(tmp_path / "s.ucp", {"w": torch.ones(2), **random_states()})
    expected = drawn()
    assert drawn() != expected
    assert fill_random_states(tmp_path / "s.ucp")
    assert drawn() == expected


def test_another_number_of_ranks_is_told(tmp_path: Path) -> None:
    ucpformat.save(tmp_path / "s.ucp", {**random_states(), "world": 3})
    state = torch.get_rng_state()
    with pytest.warns(RuntimeWarning, match="3 ranks saved .* 1 load"):
        assert not fill_random_states(tmp_path / "s.ucp")
    assert torch.equal(torch.get_rng_state(), state)
