"""What compressors do to a trained state: ratio and speed of each, by kind of slot.

Only codecs that the format has (SPEC section 16.2). A piece of work is one tensor's chunk, as the library encodes and
decodes it, on one thread: a writer has as many as it is given, and each works on a chunk of its own.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
import torch

from benchmarks.ballast import Ballast, ballast_options, loaded, prepare, words
from benchmarks.facts import machine_facts
from benchmarks.save_load import in_turn
from benchmarks.tables import Row, aligned, piped
from benchmarks.trained import Trained, train
from ucpformat.model.compressor import Compressor
from ucpformat.storage.compression import compress, decompress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ucpformat.jsonio import JsonValue

__all__ = ["Cell", "Outcome", "candidates", "command", "measure", "table"]

SCHEMA: Final = "ucpformat-benchmark-compression-1"
LEAST_ELEMENTS: Final = 1 << 14
"""Smaller tensors are left out: there is nothing to win."""


@dataclass(slots=True)
class Cell:
    """A codec on a kind of slot: bytes before and after, and seconds of processor time, one of each per round."""

    nbytes: int = 0
    stored: int = 0
    encoding: list[float] = field(default_factory=list)
    decoding: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Bytes before for each byte after."""
        return self.nbytes / self.stored

    @property
    def encoded_per_second(self) -> float:
        """Logical bytes, the median of rounds."""
        return self.nbytes / median(self.encoding)

    @property
    def decoded_per_second(self) -> float:
        """Logical bytes, the median of rounds."""
        return self.nbytes / median(self.decoding)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that was read: cells by kind of slot and codec."""

    command: str
    facts: Mapping[str, Any]
    training: Mapping[str, float]
    cells: dict[tuple[str, str], Cell]

    def to_json(self) -> dict[str, Any]:
        """Every reading."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "facts": self.facts,
            "training": self.training,
            "cells": [
                {"slot": slot, "codec": codec, **asdict(cell)} for (slot, codec), cell in self.cells.items()
            ],
        }


def candidates(item_bytes: int) -> dict[str, Compressor]:
    """Codecs by name, for elements of so many bytes."""
    found = {
        "gzip 1": Compressor("gzip", {"level": 1}),
        **{f"zstd {level}": Compressor("zstd", {"level": level, "checksum": False}) for level in (1, 3, 9)},
    }
    for (name, level), shuffle in itertools.product(
        (("lz4", 1), ("lz4", 5), ("zstd", 1), ("zstd", 3), ("zstd", 5)), ("shuffle", "bitshuffle")
    ):
        options: dict[str, JsonValue] = {
            "blocksize": 0,
            "clevel": level,
            "cname": name,
            "shuffle": shuffle,
            "typesize": item_bytes,
        }
        found[f"{shuffle}, {name} {level}"] = Compressor("blosc", options)
    return found


def _kinds(slots: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """What the training keeps, and the same as others keep it: in other types."""
    yield from slots.items()
    yield "value", slots["master"].half()
    yield "value", slots["master"].to(torch.float8_e4m3fn)
    yield from ((name, slots[name].bfloat16()) for name in ("exp_avg", "exp_avg_sq"))


def _chunks(trained: Trained) -> dict[str, list[tuple[memoryview, int]]]:
    """Raw bytes and item sizes of the matrices, by kind of slot."""
    found: defaultdict[str, list[tuple[memoryview, int]]] = defaultdict(list)
    for slots in trained.values():
        for slot, tensor in _kinds(slots):
            if slots["master"].numel() >= LEAST_ELEMENTS:
                raw = tensor.contiguous().view(torch.uint8).numpy()
                kind = str(tensor.dtype).removeprefix("torch.")
                found[f"{slot}, {kind}"].append(
                    (np.ascontiguousarray(raw).data.cast("B"), tensor.element_size())
                )
    return dict(sorted(found.items()))


def measure(
    trained: Trained,
    repeats: int,
    report: Callable[[str], None] = lambda line: None,
    ballast: Ballast | None = None,
) -> dict[tuple[str, str], Cell]:
    """Encode and decode everything with every codec, all in turn, in rounds; what comes back is compared."""
    cells: dict[tuple[str, str], Cell] = {}
    for number in range(repeats):
        report(f"round {number + 1} of {repeats}")
        for slot, chunks in _chunks(trained).items():
            prepare(ballast)
            for codec, compressor in in_turn([*candidates(chunks[0][1]).items()], number):
                cell = cells.setdefault((slot, codec), Cell())
                begin = time.process_time()
                encoded = [compress(compressor, data) for data, _ in chunks]
                middle = time.process_time()
                decoded = [
                    decompress(compressor, data, raw.nbytes, at=slot)
                    for data, (raw, _) in zip(encoded, chunks, strict=True)
                ]
                end = time.process_time()
                cell.encoding.append(middle - begin)
                cell.decoding.append(end - middle)
                cell.nbytes = sum(data.nbytes for data, _ in chunks)
                cell.stored = sum(map(len, encoded))
                if any(back != raw for back, (raw, _) in zip(decoded, chunks, strict=True)):
                    raise ValueError(f"{codec} brought back other bytes of {slot}")
    return dict(sorted(cells.items(), key=lambda item: item[0][0]))


def table(outcome: Outcome) -> list[Row]:
    """Ratio, and 10^9 logical bytes per second of one thread."""
    rows: list[Row] = [["slot", "codec", "ratio", "encode GB/s", "decode GB/s"]]
    rows += [
        [
            slot,
            codec,
            f"{cell.ratio:.3f}",
            f"{cell.encoded_per_second / 1e9:.2f}",
            f"{cell.decoded_per_second / 1e9:.2f}",
        ]
        for (slot, codec), cell in outcome.cells.items()
    ]
    return rows


@click.command("compression")
@click.option("--width", default=192, type=click.IntRange(32), help="Of the model that is trained.")
@click.option("--blocks", default=4, type=click.IntRange(1), help="Of the model that is trained.")
@click.option("--steps", default=400, type=click.IntRange(1), help="How long it is trained.")
@click.option("--repeats", default=7, type=click.IntRange(1), help="Rounds.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every reading here.")
@click.option("--markdown", "markdown_path", type=click.Path(path_type=Path), help="Write the table here.")
@ballast_options
def command(
    width: int,
    blocks: int,
    steps: int,
    repeats: int,
    json_path: Path | None,
    markdown_path: Path | None,
    steady: bool,
    kept: Path | None,
) -> None:
    """Train a small model, and compress what its checkpoint holds with every codec of the format."""
    import numcodecs

    torch.set_num_threads(1)
    numcodecs.blosc.use_threads = False  # one thread, as in a pool of them
    click.echo(f"training for {steps} steps", err=True)
    trained, first, last = train(width, blocks, steps)
    parameters = sum(slots["value"].numel() for slots in trained.values())
    with loaded(Path(), steady, kept) as ballast:
        facts = machine_facts(Path(), steady=ballast is not None)
        cells = measure(trained, repeats, lambda line: click.echo(line, err=True), ballast)
    line = f"python -m benchmarks compression --width {width} --blocks {blocks} --steps {steps} --repeats {repeats}"
    outcome = Outcome(
        line + words(ballast),
        {**facts, "numcodecs": numcodecs.__version__},
        {"parameters": parameters, "first_loss": first, "last_loss": last},
        cells,
    )
    click.echo(aligned(table(outcome)))
    if json_path is not None:
        json_path.write_text(json.dumps(outcome.to_json(), indent=1) + "\n")
    if markdown_path is not None:
        markdown_path.write_text(
            f"`{outcome.command}`: {parameters:,} parameters, loss {first:.2f} before and {last:.2f} after; "
            f"processor time of one thread, medians of {repeats} rounds.\n\n{piped(table(outcome))}\n"
        )
