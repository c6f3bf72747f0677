"""The short form of the damage campaign, and readers that it finds out; `make campaigns` draws ten thousand damages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.campaigns.damage.campaign import Campaign
from tests.campaigns.damage.media import Directory, Medium, Remote
from tests.campaigns.damage.paths import PATHS
from ucpformat.storage.reading import box_reader
from ucpformat.validation import validate

pytestmark = pytest.mark.filterwarnings("ignore")

_numbers = itertools.count()


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_nobody_takes_damage_for_data(tmp_path: Path, kind: str) -> None:
    """UCP-R-012, UCP-R-029, UCP-V-004: by every way of reading."""

    def medium() -> Medium:
        name = f"damage-{next(_numbers)}.ucp"
        return Directory(tmp_path / name) if kind == "local" else Remote(f"memory://{name}")

    campaign = Campaign(tmp_path, medium)
    for seed in range(2):
        campaign.run(seed, 6)
    assert campaign.counts["damages"] + campaign.counts["damages of shared bytes that nothing uses"] == 12
    assert not campaign.wrong


@contextmanager
def blind() -> Iterator[None]:
    """Readers that look at no checksum of data."""
    made = box_reader.BoxReader.__init__

    def trusting(self: Any, *arguments: Any, **options: Any) -> None:
        made(self, *arguments, **{**options, "verify": False})

    with patch.object(box_reader.BoxReader, "__init__", trusting):
        yield


def test_a_reader_that_does_not_look_is_found_out(tmp_path: Path) -> None:
    paths = {name: PATHS[name] for name in ("[...]", "load")}
    with blind():
        campaign = Campaign(tmp_path, lambda: Directory(tmp_path / f"{next(_numbers)}.ucp"), paths)
        for seed in range(6):
            campaign.run(seed, 10)
    assert any("gives other bytes" in wrong for wrong in campaign.wrong)


def test_a_validator_that_does_not_look_is_found_out(tmp_path: Path) -> None:
    campaign = Campaign(
        tmp_path,
        lambda: Directory(tmp_path / f"{next(_numbers)}.ucp"),
        {},
        lambda url: validate(url, "semantics", workers=1),
    )
    for seed in range(3):
        campaign.run(seed, 10)
    assert any("validate names no error" in wrong for wrong in campaign.wrong)
