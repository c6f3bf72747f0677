"""What the benchmark of logs in S3 counts is what was asked, and it recovers what it has logged."""

from __future__ import annotations

import pytest

from benchmarks.log_objects import measured
from benchmarks.s3_objects import through
from benchmarks.s3_server import BUCKET, served
from benchmarks.update_log import Gradients

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("batch", [1, "auto"])
def test_requests_and_bytes_of_a_step(batch: object) -> None:
    with served() as server, through(server):
        found = measured(
            Gradients(0.01), batch, server, f"s3://{BUCKET}/{batch}", width=64, rounds=1, milliseconds=0
        )
    assert 0 < found.requests_of_a_step <= 2.1
    assert found.bytes_of_a_step > 1000
    assert found.batches >= 1
    assert len(found.waiting) == 20
    assert found.recovery_requests > found.batches
