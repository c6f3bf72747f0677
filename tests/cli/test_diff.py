from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.conftest import Make, Ucp
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def test_equal_content_in_another_storage_is_equal(ucp: Ucp, checkpoint: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    convert_checkpoint(checkpoint, copy, source_format="ucp", destination_format="ucp", storage="plain")
    result = ucp("diff", checkpoint, copy)
    told = "equal, by recorded digests of 3 tensors; --bytes reads and verifies every byte\n"
    assert (result.exit_code, result.stdout) == (0, told)
    result = ucp("diff", checkpoint, copy, "--bytes")
    assert (result.exit_code, result.stdout) == (0, "equal, by every byte\n")
    result = ucp("diff", "--format", "json", checkpoint, copy)
    assert (result.exit_code, json.loads(result.stdout)) == (
        0,
        {"equal": True, "slots_by_digest": 3, "slots_by_bytes": 0, "differences": []},
    )


def test_a_flipped_byte_is_found_by_reading_bytes(ucp: Ucp, checkpoint: Path, make: Make) -> None:
    """The default says what it went by; with --bytes the error names the checkpoint that is damaged."""
    other = make("other")
    (pack,) = (other / "packs").iterdir()
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.write_bytes(content)
    assert "by recorded digests" in ucp("diff", checkpoint, other).stdout
    for order in ((checkpoint, other), (other, checkpoint)):
        result = ucp("diff", *order, "--bytes")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"error UCP-E-CHECKSUM in {other} at packs/{pack.name}")


def test_differences(ucp: Ucp, checkpoint: Path, make: Make) -> None:
    other = make("other", first=5, aliases=("tied",), lr=0.2, blob=b"y")
    result = ucp("diff", checkpoint, other)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "~ atoms/layer.[bold]w[/bold]/aliases: [] to ['tied']",
        "~ atoms/layer.[bold]w[/bold]/value: other bytes",
        "~ optimizers/optim",
        "~ blobs/extra",
        "4 differences, by recorded digests of 3 tensors; --bytes reads and verifies every byte",
    ]
    report = json.loads(ucp("diff", checkpoint, other, "--format", "json").stdout)
    assert not report["equal"]
    assert report["differences"][1] == {
        "kind": "changed",
        "what": "atoms/layer.[bold]w[/bold]/value",
        "detail": "other bytes",
    }


def test_more_and_less(ucp: Ucp, tmp_path: Path) -> None:
    with CheckpointWriter(tmp_path / "a", [AtomSpec("w", {"value": SlotSpec("int8", (2,))})]) as writer:
        writer.write("w", "value", np.zeros(2, np.int8))
        writer.set_value("old", 1)
        writer.set_value("both", 1)
    assert (ucp("diff", tmp_path / "a", tmp_path / "a").exit_code) == 0
    with CheckpointWriter(tmp_path / "b", [AtomSpec("v", {"value": SlotSpec("int8", ())})]) as writer:
        writer.write("v", "value", np.zeros((), np.int8))
        writer.set_value("new", 1)
        writer.set_value("both", 2)
    assert ucp("diff", tmp_path / "a", tmp_path / "b").stdout.splitlines() == [
        "+ atoms/v",
        "- atoms/w",
        "~ values/both",
        "+ values/new",
        "- values/old",
        "5 differences",
    ]


def test_a_checkpoint_that_is_not_there(ucp: Ucp, checkpoint: Path, tmp_path: Path) -> None:
    result = ucp("diff", checkpoint, tmp_path / "none")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error UCP-E-NOT-FOUND at ")
