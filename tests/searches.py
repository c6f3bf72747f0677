"""How many examples properties try whose examples are dear."""

from __future__ import annotations

from hypothesis import settings


def fewer(times: int) -> settings:
    """Try so many times fewer examples than the profile says (tests/conftest.py)."""
    profile = settings.default
    assert profile is not None
    return settings(max_examples=max(1, profile.max_examples // times))
