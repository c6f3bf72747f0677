"""Checkpoints at ``s3://`` URLs: s3fs, HTTP on loopback, and moto's server in another process (SPEC 8)."""

from __future__ import annotations

import asyncio
import datetime
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import fsspec
import numpy as np
import pytest
from aiobotocore.client import AioBaseClient
from botocore.exceptions import ClientError
from click.testing import CliRunner
from s3fs import S3FileSystem

from benchmarks.s3_server import BUCKET, S3Server, served
from tests.builders import STORAGES, State, Tensor, read_everything, save
from tests.conversion.engine.jobs import Breaks, assert_same, make, rewrite
from tests.test_commit import is_whole_or_absent
from tests.test_racing_writers import begin, finish
from ucpformat.cli import main as cli
from ucpformat.errors import UcpError
from ucpformat.geometry import Box
from ucpformat.manager.remote_place import RemotePlace
from ucpformat.manager.run_directory import place_at
from ucpformat.model.root import Storage
from ucpformat.reader import open_checkpoint
from ucpformat.repairing import repair
from ucpformat.storage.stores.remote.packs import RemotePackFile
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.validation import LEVELS, validate

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.xdist_group("distributed"),
    pytest.mark.filterwarnings("ignore"),
]

LARGE = np.random.default_rng(3).integers(
    1, 100, (60, 1 << 20), np.int8
)  # its pack is uploaded in several parts
STATE: State = {
    ("large", "value"): Tensor(LARGE, "int8"),
    ("small", "value"): Tensor(np.arange(30, dtype=np.float32).reshape(6, 5), "float32"),
    ("zero", "value"): Tensor(np.zeros(9, np.int8), "int8"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with served() as server:
        before = fsspec.config.conf.get("s3")
        fsspec.config.conf["s3"] = server.options()
        S3FileSystem.clear_instance_cache()
        yield server
        fsspec.config.conf.pop("s3")
        if before is not None:
            fsspec.config.conf["s3"] = before
        S3FileSystem.clear_instance_cache()


@pytest.fixture
def url(server: S3Server) -> str:
    return f"s3://{BUCKET}/{uuid4().hex}/run.ucp"


def keys(url: str) -> set[str]:
    return set(RemoteStore(url).keys())


@pytest.mark.parametrize("storage", STORAGES)
def test_saved_validated_and_loaded(url: str, storage: Storage) -> None:
    save(url, STATE, storage=storage)
    for level in LEVELS:
        assert validate(url, level) == []
    into = {name: np.ones_like(tensor.data) for name, tensor in STATE.items()}
    with open_checkpoint(url) as checkpoint:
        checkpoint.load(into)
    assert all(np.array_equal(into[name], tensor.data) for name, tensor in STATE.items())


def test_a_part_is_read_by_requests_for_no_more(server: S3Server, url: str) -> None:
    save(url, STATE)
    out = np.zeros((8, 1 << 20), np.int8)
    server.counts()
    with open_checkpoint(url) as checkpoint:
        checkpoint.read_boxes([(checkpoint["large"]["value"].stored, Box((13, 0), out.shape), out)])
    asked = server.counts()
    assert np.array_equal(out, LARGE[13:21])
    assert out.nbytes <= asked.sent < out.nbytes + (1 << 16)
    assert asked.requests <= 8


def test_damage_is_found(url: str) -> None:
    save(url, STATE)
    (pack,) = (key for key in keys(url) if key.endswith("-0.pack"))
    filesystem = fsspec.filesystem("s3")
    data = bytearray(filesystem.cat_file(f"{url}/{pack}"))
    data[len(data) // 2] ^= 1
    filesystem.pipe_file(f"{url}/{pack}", bytes(data))
    assert "UCP-E-CHECKSUM" in {problem.code for problem in validate(url)}
    filesystem.rm_file(f"{url}/{pack}")
    assert "UCP-E-MISSING" in {problem.code for problem in validate(url)}


@pytest.mark.parametrize("order", ["first", "second"])
def test_of_two_writers_one_commits(url: str, order: str) -> None:
    """UCP-W-010: neither touches what is the other's; the first to commit has."""
    first, second = begin(url, "packed"), begin(url, "packed")
    writers = [first, second] if order == "first" else [second, first]
    assert [finish(writer) for writer in writers] == [True, False]
    assert is_whole_or_absent(url)
    assert validate(url) == []


def test_storage_plain_wants_a_place_of_its_own(url: str) -> None:
    """UCP-W-017."""
    first = begin(url, "plain")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        begin(url, "plain")
    assert finish(first)
    assert validate(url) == []


@pytest.mark.parametrize("says_which", [True, False])
def test_a_root_that_appears_in_between_wins(url: str, says_which: bool) -> None:
    """UCP-W-004: the conditional put decides. AWS says which condition it was (s3fs goes by that), others do not."""
    save(url, STATE)
    before = keys(url)
    store = RemoteStore(url)
    store.create("blobs/mine", [memoryview(b"x")])
    real = S3FileSystem._call_s3

    async def silent(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return await real(self, *arguments, **named)
        except FileExistsError as reason:
            raise OSError(
                22, "At least one of the pre-conditions you specified did not hold"
            ) from reason.__cause__

    with (
        patch.object(S3FileSystem, "exists", return_value=False),
        patch.object(S3FileSystem, "_call_s3", real if says_which else silent),
        pytest.raises(UcpError, match="UCP-E-EXISTS"),
    ):
        store.publish(b"{}")
    store.discard()
    assert before <= keys(url)
    assert {problem.code for problem in validate(url) if problem.severity == "error"} == set()


@pytest.mark.parametrize("storage", STORAGES)
def test_a_put_whose_answer_was_lost_is_recognised(url: str, storage: Storage) -> None:
    """A client repeats the request, and the condition no longer holds: the checkpoint is committed all the same."""
    real = S3FileSystem._call_s3
    puts = []

    async def twice(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
        if method == "put_object" and named["Key"].endswith("ucp.json"):
            puts.append(await real(self, method, *arguments, **named))
        return await real(self, method, *arguments, **named)

    with patch.object(S3FileSystem, "_call_s3", twice):
        save(url, STATE, storage=storage)
    assert len(puts) == 1
    assert validate(url) == []


def test_a_committed_checkpoint_and_foreign_objects_are_left_alone(url: str) -> None:
    save(url, STATE)
    before = keys(url)
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(url, STATE)
    assert keys(url) == before
    fsspec.filesystem("s3").pipe_file(f"{url}2/thesis.txt", b"irreplaceable")
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        save(f"{url}2", STATE)
    assert keys(f"{url}2") == {"thesis.txt"}


@pytest.mark.parametrize("storage", STORAGES)
def test_debris_is_removed(url: str, storage: Storage) -> None:
    begin(url, storage).pieces.finish()  # and no more is heard of it
    debris = {key for key in keys(url) if "/zarr.json" not in key}
    assert debris
    save(url, STATE, storage="packed")
    assert not debris & keys(url)
    assert validate(url) == []


def test_a_failed_save_leaves_nothing(url: str) -> None:
    with pytest.raises(RuntimeError, match="the user's own"), begin(url, "packed"):
        raise RuntimeError("the user's own")
    assert keys(url) == set()


def test_what_another_client_has_written_is_seen(url: str) -> None:
    """Listings that s3fs keeps for a process do not tell a store what there is."""
    store = RemoteStore(url)
    store.create("blobs/a", [memoryview(b"abc")])
    filesystem = fsspec.filesystem("s3")
    assert filesystem.ls(f"{url}/blobs")
    other = S3FileSystem(skip_instance_cache=True)
    other.pipe_file(f"{url}/blobs/b", b"four")
    assert store.size("blobs/b") == 4
    assert filesystem.ls(f"{url}/blobs")
    other.rm_file(f"{url}/blobs/a")
    assert store.size("blobs/a") is None


def test_no_bucket_is_made_by_the_way(server: S3Server) -> None:
    for storage in STORAGES:
        with pytest.raises(UcpError, match=r"UCP-E-STORE.*no such bucket"):
            save("s3://misspelt/c", STATE, storage=storage)
    assert [path.rstrip("/") for path in S3FileSystem(skip_instance_cache=True).ls("")] == [BUCKET]
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        open_checkpoint("s3://misspelt/c")


def test_a_conversion_is_gone_on_with(url: str, tmp_path: Path) -> None:
    out: Any = url
    make(tmp_path / "source.ucp")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(RemotePackFile, "append", Breaks(12, KeyboardInterrupt())(RemotePackFile.append))
        with pytest.raises(KeyboardInterrupt):
            rewrite(tmp_path / "source.ucp", out, resume=True, workers=1)
    left = keys(url)
    assert left
    rewrite(tmp_path / "source.ucp", out, resume=True)
    assert_same(tmp_path / "source.ucp", out)
    assert left & keys(url)  # what was finished was not done again
    assert read_everything(url)


def uploads() -> list[Any]:
    found: list[Any] = fsspec.filesystem("s3").list_multipart_uploads(BUCKET)
    return found


@contextmanager
def requests(before: Callable[[str, Any], Awaitable[object]]) -> Iterator[None]:
    """Whatever botocore is asked for, ``before`` sees first."""
    real = AioBaseClient._make_api_call

    async def call(self: Any, operation: str, given: Any) -> Any:
        await before(operation, given)
        return await real(self, operation, given)

    with patch.object(AioBaseClient, "_make_api_call", call):
        yield


def test_a_pack_is_sent_in_parts_of_which_several_are_under_way(url: str) -> None:
    """None of seven parts is sent before all are there."""
    meeting = asyncio.Event()
    parts: list[int] = []

    async def meet(operation: str, given: Any) -> None:
        if operation == "UploadPart":
            parts.append(len(given["Body"]))
            if len(parts) == 7:
                meeting.set()
            await asyncio.wait_for(meeting.wait(), 300)

    with requests(meet):
        save(url, STATE)
    assert parts[:7] == [1 << 23] * 7
    assert validate(url) == []
    assert uploads() == []


@pytest.mark.parametrize("operation", ["UploadPart", "CompleteMultipartUpload"])
def test_a_failed_upload_leaves_no_parts(url: str, operation: str) -> None:
    asked: list[str] = []

    async def refuse(name: str, _: object) -> None:
        asked.append(name)
        if name == operation and asked.count(name) >= (3 if name == "UploadPart" else 1):
            raise PermissionError("injected")

    with requests(refuse), pytest.raises(UcpError, match=r"UCP-E-STORE.*injected"):
        save(url, STATE)
    assert asked.count("AbortMultipartUpload") == 1
    assert keys(url) == set()
    assert uploads() == []


def test_parts_of_an_attempt_whose_process_ended_are_removed(url: str) -> None:
    for number in range(3):
        RemoteStore(url).create_pack(f"packs/{number}.pack").append([LARGE[:20].ravel().data], 64)
    neighbour = RemoteStore(f"{url}2").create_pack("packs/x.pack")
    neighbour.append([LARGE[:20].ravel().data], 64)
    assert len(uploads()) == 4
    save(url, STATE)
    assert len(uploads()) == 1
    neighbour.abort()
    assert uploads() == []
    assert validate(url) == []


KILLED = """
import os, signal, sys
import fsspec
from ucpformat.storage.stores.remote.store import RemoteStore

fsspec.config.conf["s3"] = {options!r}
pack = RemoteStore({url!r}).create_pack("packs/killed.pack")
pack.append([memoryview(bytes(20 << 20))], 64)
for sent in pack._sent:
    sent.result()
os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_while_uploading(server: S3Server, url: str) -> None:
    """A process is killed that has sent two parts of a pack."""
    script = KILLED.format(options=server.options(), url=url)
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL


def test_uploads_that_died_are_collected(server: S3Server, url: str) -> None:
    """SPEC 8.3: by their age, beside what is committed and where there is nothing else."""
    save(f"{url}/step-1.ucp", STATE)
    kill_while_uploading(server, f"{url}/step-1.ucp")
    kill_while_uploading(server, f"{url}/step-2.ucp")
    kill_while_uploading(server, f"{url}/thesis")
    assert len(uploads()) == 3
    assert CliRunner().invoke(cli, ["gc", url]).output == "kept 1 checkpoints\n"
    dry = CliRunner().invoke(cli, ["gc", url, "--debris-age", "0", "--dry-run"])
    assert "would give up 1 unfinished upload to step-2.ucp" in dry.output
    assert len(uploads()) == 3
    done = CliRunner().invoke(cli, ["gc", url, "--debris-age", "0"])
    assert "gave up 1 unfinished upload to step-1.ucp\n" in done.output
    assert "gave up 1 unfinished upload to step-2.ucp\n" in done.output
    assert done.exit_code == 0
    assert [one["Key"].rpartition("/")[0][-12:] for one in uploads()] == ["thesis/packs"]
    assert validate(f"{url}/step-1.ucp") == []
    RemoteStore(f"{url}/thesis")._uploads.abort_below(f"{url}/thesis".removeprefix("s3://"))  # type: ignore[union-attr]


def test_a_run_with_nothing_but_uploads_is_collected(server: S3Server, url: str) -> None:
    kill_while_uploading(server, f"{url}/step-0.ucp")
    done = CliRunner().invoke(cli, ["gc", url, "--debris-age", "0", "--format", "json"])
    assert json.loads(done.output) == {
        "kept": [],
        "removed": [],
        "bytes": {},
        "uploads": {"step-0.ucp": 1},
        "problems": [],
        "log": None,
    }
    assert uploads() == []


def test_debris_beside_an_upload_that_grows_is_not_collected(url: str) -> None:
    """What is being sent is a sign of life."""
    begin(f"{url}/step-1.ucp", "packed").pieces.finish()
    place = place_at(url)
    aged = datetime.timedelta(days=2)
    real = RemotePlace._changed
    with patch.object(
        RemotePlace, "_changed", lambda *given: real(*given) - aged * ("-clock-" not in given[1])
    ):
        before = place.age("step-1.ucp")
        pack = RemoteStore(f"{url}/step-1.ucp").create_pack("packs/large.pack")
        pack.append([LARGE[:20].ravel().data], 64)
        after = place.age("step-1.ucp")
    pack.abort()
    assert before is not None
    assert after is not None
    assert after < 86400 < before


def test_an_upload_whose_last_answer_was_lost_is_recognised(url: str) -> None:
    real = AioBaseClient._make_api_call
    completed = []

    async def twice(self: Any, operation: str, given: Any) -> Any:
        if operation == "CompleteMultipartUpload":
            completed.append(await real(self, operation, given))
        return await real(self, operation, given)

    with patch.object(AioBaseClient, "_make_api_call", twice):
        save(url, STATE)
    assert len(completed) == 1
    assert validate(url) == []


def test_a_conditional_put_that_met_another_is_repeated(url: str) -> None:
    """UCP-W-004: HTTP 409 as AWS answers it, through botocore and s3fs."""
    refused: list[str] = []

    async def conflict(operation: str, given: Any) -> None:
        if operation == "PutObject" and given["Key"].endswith("ucp.json") and len(refused) < 2:
            refused.append(given["IfNoneMatch"])
            answer = {
                "Code": "ConditionalRequestConflict",
                "Message": "A conflicting operation is in progress",
            }
            raise ClientError({"Error": answer, "ResponseMetadata": {"HTTPStatusCode": 409}}, operation)

    with requests(conflict), patch("ucpformat.storage.stores.remote.repetition.time.sleep"):
        save(url, STATE)
    assert refused == ["*", "*"]
    assert validate(url) == []


def test_media_that_s3fs_lies_behind_are_written_as_streams(url: str) -> None:
    save(f"simplecache::{url}", STATE)
    assert validate(url) == []


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_lost_is_restored(url: str, tmp_path: Path, storage: Storage) -> None:
    """SPEC 8.4: objects that are missing and one that is cut, a pack of several parts, from a local copy."""
    save(url, STATE, storage=storage, chunk_bytes=16 << 20)
    save(tmp_path / "other", STATE)
    store = RemoteStore(url)
    good = {key: store.read(key, 0, store.size(key) or 0) for key in keys(url)}
    data = [key for key in good if key.startswith("packs/") or "/c/" in key]
    large = max(data, key=lambda key: len(good[key]))
    store.replace(large, [memoryview(good[large])[: 3 << 20]])
    for key in data:
        if key != large:
            store.remove(key)
    assert repair(url, [tmp_path / "other"]).is_whole
    assert {key: store.read(key, 0, store.size(key) or 0) for key in keys(url)} == good
    assert validate(url) == []
