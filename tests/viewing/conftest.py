"""One Chromium for all tests that look at the page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.viewing.chromium import CHROMIUM, Chromium


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here; Debian's package is `chromium`")
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser
