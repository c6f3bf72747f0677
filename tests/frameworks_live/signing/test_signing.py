"""Checkpoints signed and verified by OpenSSF's model-signing, with keys of this machine, and no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import model_signing
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import ucpformat as ucp
from tests.documentation.markdown import run_by
from ucpformat.copying import copy_checkpoint
from ucpformat.model.root import ROOT_KEY, Storage

PAGE = "docs/integrity.md"
HERE = "tests/frameworks_live/signing/test_signing.py"


def save(path: Path, storage: Storage) -> None:
    """Three objects of data, a blob and the documents."""
    slots = {"value": ucp.SlotSpec("float32", (64, 64)), "exp_avg": ucp.SlotSpec("float32", (64, 64))}
    with ucp.CheckpointWriter(path, [ucp.AtomSpec("w", slots)], storage=storage, chunk_bytes=8192) as writer:
        for seed, slot in enumerate(slots):
            data = np.random.default_rng(seed).random((64, 64), np.float32)
            writer.write("w", slot, data)
        writer.set_value("epoch", 3)
        writer.add_blob("extra", b"opaque", "application/octet-stream")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A directory with a private and a public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "private.pem").write_bytes(private)
    (tmp_path / "public.pem").write_bytes(public)
    return tmp_path


def sign(what: Path, keys: Path, signature: Path) -> None:
    model_signing.signing.Config().use_elliptic_key_signer(private_key=keys / "private.pem").sign(
        what, signature
    )


def is_verified(what: Path, keys: Path, signature: Path, *, ignores_unsigned: bool = False) -> bool:
    config = model_signing.verifying.Config().use_elliptic_key_verifier(public_key=keys / "public.pem")
    if ignores_unsigned:
        config = config.set_ignore_unsigned_files(True)
    try:
        config.verify(what, signature)
    except ValueError:
        return False
    return True


def flip(file: Path, place: int = -1) -> bytes:
    """Change one byte of a file; returns what it was."""
    good = file.read_bytes()
    data = bytearray(good)
    data[place] ^= 0x10
    file.write_bytes(data)
    return good


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_all_files_signed(keys: Path, storage: Storage) -> None:
    """A byte flipped in any file, a file more and a file less are refused; a copy, and what was repaired, are not."""
    path, signature = keys / "a.ucp", keys / "a.sig"
    save(path, storage)
    sign(path, keys, signature)
    assert is_verified(path, keys, signature)
    copy = keys / "copies" / "a.ucp"
    copy_checkpoint(path, copy)
    assert is_verified(copy, keys, signature)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) > 5
    for file in files:
        good = flip(file, len(file.read_bytes()) // 2)
        assert not is_verified(path, keys, signature), file
        file.write_bytes(good)
    staged = path / ".ucp.json.repair-0"
    staged.touch()
    assert not is_verified(path, keys, signature)
    assert is_verified(path, keys, signature, ignores_unsigned=True)
    staged.unlink()
    victim = max(files, key=lambda file: file.stat().st_size)
    victim.unlink()
    assert not is_verified(path, keys, signature, ignores_unsigned=True)
    assert ucp.repair(path, [copy]).is_whole
    assert is_verified(path, keys, signature)


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_the_root_document_signed(keys: Path, storage: Storage) -> None:
    """One small file is signed: what happens to it the signature tells, and to all others `validate`."""
    path, signature = keys / "a.ucp", keys / "a.sig"
    save(path, storage)
    sign(path / ROOT_KEY, keys, signature)
    for file in [file for file in path.rglob("*") if file.is_file()]:
        good = flip(file, len(file.read_bytes()) // 2)
        is_signed = is_verified(path / ROOT_KEY, keys, signature)
        assert is_signed == (file.name != ROOT_KEY)
        assert not is_signed or ucp.validate(path), file
        file.write_bytes(good)
    assert is_verified(path / ROOT_KEY, keys, signature)
    assert ucp.validate(path) == []


def test_another_checkpoint_in_its_place(keys: Path) -> None:
    save(keys / "a.ucp", "packed")
    sign(keys / "a.ucp", keys, keys / "a.sig")
    sign(keys / "a.ucp" / ROOT_KEY, keys, keys / "root.sig")
    shutil.rmtree(keys / "a.ucp")
    save(keys / "a.ucp", "packed")
    assert ucp.validate(keys / "a.ucp") == []
    assert not is_verified(keys / "a.ucp", keys, keys / "a.sig")
    assert not is_verified(keys / "a.ucp" / ROOT_KEY, keys, keys / "root.sig")


def test_the_page_does_what_it_says(keys: Path) -> None:
    """The commands of docs/integrity.md, as they stand there."""
    save(keys / "step-1000.ucp", "packed")
    blocks = run_by(HERE, PAGE)
    assert len(blocks) == 2
    programs = Path(sys.executable).parent
    for block in blocks:
        command = f'export PATH="{programs}:$PATH"; set -e\n{block.text}'
        subprocess.run(["bash", "-c", command], cwd=keys, check=True, capture_output=True)
