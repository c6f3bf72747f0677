"""Increments at ``s3://`` URLs: copies that the server makes, whole and in parts (SPEC 8.5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from aiobotocore.client import AioBaseClient

import ucpformat as ucp
from tests.frameworks_live.s3.test_checkpoints import LARGE, server, url
from tests.frameworks_live.store_checks import (
    keys,
    test_a_copy_within_the_store_is_made_by_it,
    test_an_increment_of_a_base_that_is_replaced_leaves_nothing,
    test_an_increment_sends_what_has_changed,
)
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.manager.remote_place import RemotePlace
from ucpformat.storage.stores.remote.s3_uploads import S3Uploads

__all__ = [
    "server",
    "test_a_copy_within_the_store_is_made_by_it",
    "test_an_increment_of_a_base_that_is_replaced_leaves_nothing",
    "test_an_increment_sends_what_has_changed",
    "url",
]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count requests by name, and bytes that are sent."""
    counts: Counter[str] = Counter()
    real = AioBaseClient._make_api_call

    async def call(self: Any, name: str, arguments: dict[str, Any]) -> Any:
        counts[name] += 1
        body = arguments.get("Body", b"")
        counts["bytes"] += len(body) if isinstance(body, bytes | bytearray) else 0
        return await real(self, name, arguments)

    with patch.object(AioBaseClient, "_make_api_call", call):
        yield counts


def states() -> Iterator[dict[str, Any]]:
    for step in range(1, 5):
        yield {"large": LARGE, "small": np.full(8, step, np.float32)}


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_a_run_of_increments_sends_little(url: str, in_parts: bool) -> None:
    most = 10 << 20 if in_parts else 5 << 30
    with (
        patch.object(S3Uploads, "most_copied", most),
        patch.object(S3Uploads, "copied_bytes", 16 << 20),
        ucp.CheckpointManager(url, incremental=True, asynchronous=True, keep_last=2) as manager,
    ):
        for step, state in enumerate(states(), 1):
            with counted() as counts:
                manager.save(step, state).wait()
            if step > 1:
                assert counts["bytes"] < 20_000
                # One pack of 60 MiB, and then a small one as well.
                assert counts["UploadPartCopy"] == (4 if in_parts else 0)
                assert counts["CopyObject"] >= (0 if in_parts else 1)
        assert manager.steps() == [3, 4]
    for step in (3, 4):
        assert ucp.validate(f"{url}/step-{step}.ucp") == []
    assert np.array_equal(ucp.load(f"{url}/step-4.ucp")["large"], LARGE)


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_requests_of_a_copy(url: str, in_parts: bool) -> None:
    """One for each object, or for each part of a long one; sent are a claim and the root document."""
    ucp.save(f"{url}/1", next(states()))
    count = len(keys(f"{url}/1"))
    most = 10 << 20 if in_parts else 5 << 30
    with (
        patch.object(S3Uploads, "most_copied", most),
        patch.object(S3Uploads, "copied_bytes", 16 << 20),
        counted() as counts,
    ):
        copy_checkpoint(f"{url}/1", f"{url}/2")
    assert (counts["CopyObject"], counts["UploadPartCopy"]) == (
        (count - 2, 4) if in_parts else (count - 1, 0)
    )
    assert (counts["UploadPart"], counts["bytes"]) < (1, 4000)
    assert counts["PutObject"] <= 2 + 3, "and the probes for conditions, once for a bucket"
    assert ucp.validate(f"{url}/2") == []


def test_a_copy_in_parts_of_what_is_replaced_leaves_no_parts(url: str) -> None:
    first, second, *_ = states()
    ucp.save(f"{url}/1", first)
    real = S3Uploads._copy_part
    path = url.removeprefix("s3://")

    def harmed(self: S3Uploads, to: str, number: int, asked: Any) -> Any:
        if number == 2:
            self._filesystem.rm(f"{path}/1", recursive=True)
        return real(self, to, number, asked)

    with (
        patch.object(S3Uploads, "most_copied", 10 << 20),
        patch.object(S3Uploads, "copied_bytes", 16 << 20),
        patch.object(S3Uploads, "_copy_part", harmed),
        pytest.raises(UcpError, match=r"UCP-E-NOT-FOUND.*base"),
    ):
        ucp.save(f"{url}/2", second, base=f"{url}/1")
    assert keys(f"{url}/2") == set()
    uploads = S3Uploads.by(RemotePlace(url)._filesystem)
    assert uploads is not None
    assert list(uploads.unfinished_below(path)) == []
