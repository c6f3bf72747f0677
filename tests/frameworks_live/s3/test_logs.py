"""Update logs at ``s3://`` URLs, with moto's server (SPEC-UPDATE-LOGS)."""

from __future__ import annotations

import pytest

from tests.frameworks_live.log_checks import *  # noqa: F403 - the tests
from tests.frameworks_live.s3.test_checkpoints import server, url

__all__ = ["server", "url"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]
