"""Update logs at ``abfs://`` URLs, with Azurite (SPEC-UPDATE-LOGS)."""

from __future__ import annotations

import pytest

from tests.frameworks_live.azure.test_checkpoints import AZURITE, container, url
from tests.frameworks_live.log_checks import *  # noqa: F403 - the tests

__all__ = ["container", "url"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(AZURITE is None, reason="needs Azurite: npm install azurite"),
]
