"""Checkpoints at ``abfs://`` URLs: adlfs, HTTP on loopback, and Azurite, which comes from npm (SPEC 8)."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import fsspec
import pytest
from adlfs import AzureBlobFileSystem

from tests.frameworks_live.serving import free_port, serving
from tests.frameworks_live.store_checks import *  # noqa: F403 - the tests

AZURITE: Final = shutil.which(
    "azurite-blob", path=str(Path(sys.prefix, "node_modules", ".bin"))
) or shutil.which("azurite-blob")
CONTAINER: Final = "checkpoints"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Those of Azurite, as its documentation has them for everybody."""

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(AZURITE is None, reason="needs Azurite: npm install azurite"),
]


@pytest.fixture(scope="module")
def container() -> Iterator[str]:
    port = free_port()
    command = [
        str(AZURITE),
        "--silent",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--blobPort",
        str(port),
    ]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    connection = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint};"
    )
    with pytest.MonkeyPatch.context() as patches, serving(command, port):
        patches.setitem(fsspec.config.conf, "abfs", {"connection_string": connection})
        fsspec.filesystem("abfs").mkdir(CONTAINER)
        yield f"abfs://{CONTAINER}"
        AzureBlobFileSystem.clear_instance_cache()


@pytest.fixture
def url(container: str) -> str:
    return f"{container}/{uuid4().hex}/run.ucp"
