"""What each process of the damage campaign does: a module of its own, so that a process that is started finds it."""

from __future__ import annotations

import uuid
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.campaigns.damage.campaign import Campaign
from tests.campaigns.damage.media import Directory, Medium, Remote

__all__ = ["begin", "run"]

Told = tuple[Counter[str], list[str]]

_PREFIXES = {"memory": "memory://", "s3": "s3://checkpoints/"}

_campaign: Campaign | None = None


def begin(place: str, kind: str, endpoint: dict[str, Any] | None) -> None:
    """In each process: what its campaign is held on."""
    global _campaign
    warnings.simplefilter("ignore")  # loops of clients that are collected late
    scratch = Path(place)
    if endpoint is not None:
        import fsspec

        fsspec.config.conf["s3"] = endpoint

    def medium() -> Medium:
        name = f"{uuid.uuid4().hex}.ucp"
        return Directory(scratch / name) if kind == "local" else Remote(f"{_PREFIXES[kind]}{name}")

    _campaign = Campaign(scratch, medium)


def run(seed: int) -> Told:
    """One checkpoint; what came of it."""
    assert _campaign is not None
    _campaign.counts.clear()
    _campaign.wrong.clear()
    _campaign.run(seed)
    return _campaign.counts, _campaign.wrong
