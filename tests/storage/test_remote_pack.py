"""Packs that are uploaded in parts, several at once, to an S3 in memory that keeps the rules of the real one."""

from __future__ import annotations

import datetime
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import State, Tensor, read_everything, save
from ucpformat.errors import UcpError
from ucpformat.storage.reading.stored_slot import slot_form
from ucpformat.storage.stores.remote.s3_uploads import S3Uploads
from ucpformat.storage.stores.remote.store import RemoteStore
from ucpformat.storage.writing.chunk_writer import ChunkPiece, SlotPlace, StoredChunk
from ucpformat.storage.writing.packed_chunks import PackedChunkWriter
from ucpformat.validation import validate

PART = 1 << 12
STATE: State = {
    (name, "value"): Tensor(np.random.default_rng(7).integers(1, 100, (40, 1 << 10), np.int8), "int8")
    for name in "abc"
}

BEGUN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class InMemoryS3:
    """Multipart uploads beside `MemoryFileSystem`: what `S3FileSystem.call_s3` would ask of a server."""

    def __init__(self, least: int = PART, most: int = 10_000) -> None:
        self.least, self.most = least, most
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.completed: list[tuple[int, ...]] = []
        self.asked: dict[str, int] = defaultdict(int)
        self.before: dict[str, Any] = {}
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()

    def call(self, filesystem: MemoryFileSystem, method: str, **named: Any) -> Any:
        with self.lock:
            self.asked[method] += 1
        if method in self.before:
            self.before[method]()
        return getattr(self, method)(filesystem, named)

    def create_multipart_upload(self, _: object, named: dict[str, Any]) -> Any:
        with self.lock:
            upload = uuid4().hex
            self.uploads[upload] = (path_of(named), {})
            return {"UploadId": upload}

    def upload_part(self, _: object, named: dict[str, Any]) -> Any:
        number, body = named["PartNumber"], bytes(named["Body"])
        assert 1 <= number <= self.most
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        if "sending" in self.before:
            self.before["sending"]()
        with self.lock:
            self.under_way -= 1
            path, parts = self.uploads[named["UploadId"]]
            assert path == path_of(named)
            parts[number] = body
            return {"ETag": f"{number}-{len(body)}", "ChecksumSHA256": "sum", "ResponseMetadata": {}}

    def complete_multipart_upload(self, filesystem: MemoryFileSystem, named: dict[str, Any]) -> None:
        with self.lock:
            if named["UploadId"] not in self.uploads:
                raise FileNotFoundError("NoSuchUpload")
            path, parts = self.uploads.pop(named["UploadId"])
            sizes = tuple(len(parts[number]) for number in sorted(parts))
            assert named["MultipartUpload"]["Parts"] == [
                {"PartNumber": number, "ETag": f"{number}-{size}", "ChecksumSHA256": "sum"}
                for number, size in enumerate(sizes, 1)
            ]
            assert path == path_of(named)
            assert min(sizes[:-1], default=self.least) >= self.least
            assert len(set(sizes[:-1])) <= 1
            self.completed.append(sizes)
            filesystem.pipe_file(f"/{path}", b"".join(parts[number] for number in sorted(parts)))

    def abort_multipart_upload(self, _: object, named: dict[str, Any]) -> None:
        with self.lock:
            assert not self.under_way, "a part that arrives after that is kept"
            path, _parts = self.uploads.pop(named["UploadId"])
            assert path == path_of(named)

    def list_multipart_uploads(self, _: object, named: dict[str, Any]) -> Any:
        """Two to a page."""
        bucket = named["Bucket"]
        found = sorted(
            (path.removeprefix(f"{bucket}/"), upload)
            for upload, (path, _parts) in self.uploads.items()
            if path.startswith(f"{bucket}/{named['Prefix']}")
        )
        last = (named.get("KeyMarker", ""), named.get("UploadIdMarker", ""))
        page = [entry for entry in found if entry > last]
        more = {"NextKeyMarker": page[1][0], "NextUploadIdMarker": page[1][1]} if len(page) > 2 else {}
        return {
            "Uploads": [{"Key": key, "UploadId": upload, "Initiated": BEGUN} for key, upload in page[:2]],
            "IsTruncated": bool(more),
            **more,
        }


def path_of(named: dict[str, Any]) -> str:
    return f"{named['Bucket']}/{named['Key']}"


def split(_: object, path: str) -> tuple[str, str, None]:
    bucket, _, key = path.lstrip("/").partition("/")
    return bucket, key, None


def installed(patches: pytest.MonkeyPatch, server: InMemoryS3, part_bytes: int = PART) -> None:
    patches.setattr(MemoryFileSystem, "protocol", ("memory", "s3"))

    def call(self: MemoryFileSystem, method: str, **named: Any) -> Any:
        return server.call(self, method, **named)

    patches.setattr(MemoryFileSystem, "call_s3", call, raising=False)
    patches.setattr(MemoryFileSystem, "split_path", split, raising=False)
    patches.setattr(S3Uploads, "part_bytes", part_bytes)
    patches.setattr(S3Uploads, "most_parts", server.most)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> InMemoryS3:
    server = InMemoryS3()
    installed(monkeypatch, server)
    return server


@pytest.fixture
def url() -> Iterator[str]:
    yield f"memory://{uuid4().hex}/run.ucp"
    MemoryFileSystem.store.clear()


def data(number: int, size: int) -> memoryview:
    return np.random.default_rng(number).integers(1, 255, size, np.uint8).data


def written(
    store: RemoteStore, sizes: Sequence[int], threads: int = 1
) -> tuple[list[StoredChunk], list[tuple[str, int]]]:
    writer = PackedChunkWriter(store, name="a-0", packs=store.packs_at_once)

    def write(number: int) -> StoredChunk:
        dtype, grid = slot_form("uint8", (sizes[number],), 1 << 40)
        place = SlotPlace(f"k{number}", "value", dtype, grid, None)
        return writer.write_many([ChunkPiece(place, 0, None, data(number, sizes[number]))])[0]

    with ThreadPoolExecutor(threads) as executor:
        chunks = list(executor.map(write, range(len(sizes))))
    return chunks, [(pack.key, pack.length) for pack in writer.finish()]


def assert_read_back(
    store: RemoteStore, sizes: Sequence[int], chunks: Sequence[StoredChunk], packs: Sequence[tuple[str, int]]
) -> None:
    assert (
        {key: store.size(key) for key, _ in packs}
        == dict(packs)
        == {key: store.size(key) for key in list(store.keys())}
    )
    for number, (size, chunk) in enumerate(zip(sizes, chunks, strict=True)):
        segment = chunk.segment
        assert segment is not None
        key, _ = packs[segment.container]
        assert store.read(key, segment.offset, segment.offset + size) == data(number, size)


@given(
    sizes=st.lists(st.integers(1, 3000), max_size=12),
    part_bytes=st.integers(1, 700),
    most=st.integers(1, 6),
    threads=st.integers(1, 3),
)
def test_whatever_is_written_lies_in_packs_of_few_equal_parts(
    sizes: list[int], part_bytes: int, most: int, threads: int
) -> None:
    """Packs end before they have too many parts; a segment longer than that has larger ones."""
    with pytest.MonkeyPatch.context() as patches:
        server = InMemoryS3(1, most)
        installed(patches, server, part_bytes)
        store = RemoteStore(f"memory://{uuid4().hex}/c")
        chunks, packs = written(store, sizes, threads)
        assert_read_back(store, sizes, chunks, packs)
        assert all(len(parts) <= most for parts in server.completed)
        assert not server.uploads
        store.close()
        MemoryFileSystem.store.clear()


def test_streams_end_as_well(url: str) -> None:
    """Media that take parts by their own counting get packs of bounded length."""
    sizes = [300, 500, 2000, 10, 900]
    with patch("ucpformat.storage.stores.remote.packs._STREAM_BYTES", 1000):
        store = RemoteStore(url)
        chunks, packs = written(store, sizes)
    assert_read_back(store, sizes, chunks, packs)
    assert len(packs) == 4


def test_saved_in_parts(server: InMemoryS3, url: str) -> None:
    save(url, STATE)
    assert validate(url) == []
    assert (
        sum(len(parts) for parts in server.completed)
        >= sum(tensor.data.nbytes for tensor in STATE.values()) // PART
    )
    assert {name: found.tolist() for name, found in read_everything(url).items()} == {
        name: tensor.data.tolist() for name, tensor in STATE.items()
    }


def test_less_than_a_part_is_one_put(server: InMemoryS3, url: str) -> None:
    store = RemoteStore(url)
    pack = store.create_pack("packs/x.pack")
    assert pack.append([memoryview(b"abc")], 64) == 0
    assert pack.append([memoryview(b"d")], 64) == 64
    assert pack.close() == 65
    assert store.read("packs/x.pack", 0, 65) == b"abc" + bytes(61) + b"d"
    assert not server.asked


def test_eight_parts_are_under_way_at_once_and_never_more(server: InMemoryS3, url: str) -> None:
    """None of eight returns before all are there: fewer would never come together."""
    meeting = threading.Barrier(8)
    server.before["sending"] = lambda: meeting.wait(timeout=300)
    store = RemoteStore(url)
    pack = store.create_pack("packs/x.pack")
    pack.append([data(0, 32 * PART)], 64)
    assert pack.close() == 32 * PART
    assert store.read("packs/x.pack", 0, 32 * PART) == data(0, 32 * PART)
    assert server.most_under_way == 8


def test_what_the_user_allows_is_kept_to(server: InMemoryS3, url: str) -> None:
    """`S3FileSystem(max_concurrency=1)` is for slow networks."""
    with patch.object(MemoryFileSystem, "max_concurrency", 1, create=True):
        save(url, STATE)
    assert server.most_under_way == 1
    assert validate(url) == []


def refuse() -> None:
    raise OSError(5, "injected")


@pytest.mark.parametrize("method", ["create_multipart_upload", "upload_part", "complete_multipart_upload"])
def test_a_refusal_fails_the_save_and_leaves_nothing(server: InMemoryS3, url: str, method: str) -> None:
    server.before[method] = refuse
    with pytest.raises(UcpError, match=r"UCP-E-STORE.*injected"):
        save(url, STATE)
    assert list(RemoteStore(url).keys()) == []
    assert not server.uploads


def test_a_pack_that_was_given_up_takes_nothing_and_is_no_object(server: InMemoryS3, url: str) -> None:
    store = RemoteStore(url)
    pack = store.create_pack("packs/x.pack")
    pack.append([data(0, 3 * PART)], 64)
    server.before["upload_part"] = refuse
    # The first part that is refused may be noticed at any later one.
    with pytest.raises(UcpError, match="injected"):
        pack.append([data(1, 100 * PART)], 64)
    # Whoever comes later hears the same reason: of several threads, any may be the first to be heard.
    for action in (pack.close, lambda: pack.append([data(2, 1)], 64)):
        with pytest.raises(UcpError, match="injected"):
            action()
    pack.abort()
    assert list(store.keys()) == []
    assert server.asked["abort_multipart_upload"] == 1
    assert not server.uploads


def test_an_upload_whose_last_answer_was_lost_is_recognised(server: InMemoryS3, url: str) -> None:
    """A client repeats the request that completes an upload, which is no more then."""
    real = server.complete_multipart_upload

    def twice(*arguments: Any, **named: Any) -> None:
        real(*arguments, **named)
        real(*arguments, **named)

    with patch.object(server, "complete_multipart_upload", twice):
        save(url, STATE)
    assert validate(url) == []


def test_an_upload_that_somebody_has_aborted_fails(server: InMemoryS3, url: str) -> None:
    server.before["complete_multipart_upload"] = server.uploads.clear
    with pytest.raises(UcpError, match="UCP-E-STORE"):
        save(url, STATE)
    assert list(RemoteStore(url).keys()) == []


def test_a_save_that_is_given_up_aborts_its_uploads(server: InMemoryS3, url: str) -> None:
    store = RemoteStore(url)
    writer = PackedChunkWriter(store, name="a-0")
    dtype, grid = slot_form("uint8", (9 * PART,), 1 << 40)
    writer.write(SlotPlace("k", "value", dtype, grid, None), 0, None, data(0, 9 * PART))
    assert server.uploads
    writer.abort()
    assert not server.uploads
    assert not server.completed
    assert list(store.keys()) == []


def test_parts_of_an_attempt_whose_process_ended_are_removed(server: InMemoryS3, url: str) -> None:
    """No listing of objects shows them; they would be paid for."""
    abandoned = RemoteStore(url)
    for number in range(5):
        abandoned.create_pack(f"packs/{number}.pack").append([data(0, 2 * PART)], 64)
    neighbour = RemoteStore(f"{url}2").create_pack("packs/x.pack")
    neighbour.append([data(0, 2 * PART)], 64)
    save(url, STATE)
    assert len(server.uploads) == 1
    assert neighbour.close() == 2 * PART
    assert validate(url) == []


def test_nobody_needs_the_right_to_list_uploads(server: InMemoryS3, url: str) -> None:
    server.before["list_multipart_uploads"] = refuse
    save(url, STATE)
    assert server.asked["list_multipart_uploads"] == 1
    assert validate(url) == []


class Buffered(AbstractBufferedFile):  # type: ignore[misc]
    """A stream that sends what it holds when it is closed."""

    discarded = 0

    def discard(self) -> None:
        type(self).discarded += 1

    def _upload_chunk(self, final: bool = False) -> bool:
        raise AssertionError("sent")


def test_a_stream_that_is_given_up_sends_nothing_more(url: str) -> None:
    store = RemoteStore(url)
    stream = Buffered(MemoryFileSystem(), f"{url}/packs/x.pack", "wb")
    with patch.object(MemoryFileSystem, "open", return_value=stream):
        pack = store.create_pack("packs/x.pack")
    pack.append([memoryview(b"abc")], 64)
    pack.abort()
    assert (Buffered.discarded, stream.closed) == (1, True)
    with pytest.raises(UcpError, match="given up"):
        pack.close()


def test_streams_to_object_stores_send_blocks_of_16_mib(url: str) -> None:
    asked: list[dict[str, Any]] = []
    real = MemoryFileSystem.open

    def recorded(self: Any, path: str, mode: str, **named: Any) -> Any:
        asked.append(named)
        return real(self, path, mode, **named)

    with patch.object(MemoryFileSystem, "open", recorded):
        RemoteStore(url).create_pack("packs/x.pack").close()
        with patch.object(MemoryFileSystem, "protocol", ("gs", "gcs")):
            RemoteStore(url).create_pack("packs/y.pack").close()
    assert asked == [{}, {"block_size": 1 << 24}]
