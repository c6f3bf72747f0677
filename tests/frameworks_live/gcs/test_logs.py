"""Update logs at ``gs://`` URLs, with fake-gcs-server (SPEC-UPDATE-LOGS)."""

from __future__ import annotations

import pytest

from tests.frameworks_live.gcs.test_checkpoints import bucket, url
from tests.frameworks_live.log_checks import *  # noqa: F403 - the tests

__all__ = ["bucket", "url"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]
