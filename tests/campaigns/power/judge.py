"""What a loss of power may leave, judged by readers and validator."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.campaigns.power.disk import State
from tests.campaigns.power.operations import Operation, content
from ucpformat.conversion.contract.registry import UCP
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.errors import UcpError
from ucpformat.model.root import ROOT_KEY
from ucpformat.update_log.durability import extent_of
from ucpformat.update_log.place import LOG_KEY
from ucpformat.update_log.reading import StoredLog
from ucpformat.update_log.validation import log_problems

__all__ = ["Judge", "digest_of"]


def digest_of(state: State) -> bytes:
    """What tells a state from others: attempts have names of their own, which stay as they are."""
    found = hashlib.blake2b(digest_size=16)
    for path, data in sorted(state.items()):
        found.update(path.encode() + (b"/" if data is None else b"\0" + hashlib.blake2b(data).digest()))
    return found.digest()


def below(state: State, name: str) -> State:
    """The part of a state that lies at a path."""
    return {path: data for path, data in state.items() if path == name or path.startswith(f"{name}/")}


@dataclass
class Judge:
    """Judges states of one operation in ``directory``; ``wrong`` is what must not be, by what it is."""

    operation: Operation
    directory: Path
    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    _verdicts: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def judge(self, state: State, acknowledged: frozenset[str], where: str) -> None:
        """``acknowledged`` are the checkpoints of which `done` was said before the loss of power."""
        operation = self.operation
        for name, number in operation.keeps.items():
            self._require(name, number, state, {"whole"}, where)
        for name, number in operation.makes.items():
            allowed = {"whole"} if name in acknowledged else {"whole", "absent"}
            if name in operation.formats and name not in acknowledged:
                allowed.add("detected")
            self._require(name, number, state, allowed, where)
        for name, number in operation.mends.items():
            allowed = {"whole"} if name in acknowledged else {"whole", "broken"}
            self._require(name, number, state, allowed, where)
        for name, number in operation.removes.items():
            self._require(
                name, number, state, {"absent"} if name in acknowledged else {"whole", "absent"}, where
            )

        for name, steps in operation.logs.items():
            self._require_log(name, steps, state, acknowledged, where)

    def _require_log(
        self, name: str, steps: int, state: State, acknowledged: frozenset[str], where: str
    ) -> None:
        """A log has no fault but a torn end, and every step that was acknowledged."""
        told = max((number for number in range(steps + 1) if f"{name}@{number}" in acknowledged), default=0)
        part = below(state, name)
        key = name, digest_of(part)
        if key not in self._verdicts:
            self._verdicts[key] = self._verdict_of_log(name, part)
            self.counts["logs read"] += 1
        verdict = self._verdicts[key]
        self.counts["log"] += 1
        if not verdict.isdigit() or int(verdict) < told:
            self.wrong.setdefault(f"{self.operation.name}: {name} is {verdict}, told were {told}", where)

    def _verdict_of_log(self, name: str, part: State) -> str:
        """Return how many steps count, or what is wrong."""
        if f"{name}/{LOG_KEY}" not in part:
            return "0"
        with _written(part, self.directory) as directory:
            url = str(directory / name)
            errors = [one for one in log_problems(url) if one.severity == "error"]
            if errors:
                return f"broken: {errors[0].code} at {errors[0].at}: {errors[0].message}"
            with StoredLog(url) as log:
                branch = log.branch()
                if not branch:
                    return "0"
                first = branch[0].stored.epoch
                chains = [log.chain(first.epoch, rank) for rank in range(first.ranks)]
                begin = max(chain.first_step for chain in chains)
                return str(extent_of(log, (first.epoch, begin)).stop_step)

    def _require(self, name: str, number: int, state: State, allowed: set[str], where: str) -> None:
        part = below(state, name)
        key = name, digest_of(part)
        if key not in self._verdicts:
            self._verdicts[key] = self._verdict(name, number, part)
            self.counts["checkpoints read"] += 1
        verdict = self._verdicts[key]
        self.counts[verdict.partition(":")[0]] += 1
        if verdict.partition(":")[0] not in allowed:
            self.wrong.setdefault(f"{self.operation.name}: {name} is {verdict}", where)

    def _verdict(self, name: str, number: int, part: State) -> str:
        """``absent``, ``whole``, ``detected`` (its reader refuses it), ``broken`` (has errors), or worse."""
        if name in self.operation.formats:
            return self._verdict_of_export(name, number, part)
        if f"{name}/{ROOT_KEY}" not in part:
            return "absent"
        with _written(part, self.directory) as directory:
            problems = ucp.validate(directory / name, workers=1)
            errors = [problem for problem in problems if problem.severity == "error"]
            if errors:
                return f"broken: {errors[0].code} at {errors[0].at}"
            return "whole" if _holds(ucp.load(directory / name), number) else "something else: other bytes"

    def _verdict_of_export(self, name: str, number: int, part: State) -> str:
        if not part:
            return "absent"
        format_name = self.operation.formats[name]
        with _written(part, self.directory) as directory:
            try:
                convert_checkpoint(
                    directory / name,
                    directory / "read.ucp",
                    source_format=_detected(directory / name, format_name),
                    destination_format=UCP,
                    engine=EngineOptions(durability="none", workers=1, pool="threads"),
                )
            except UcpError:
                return "detected"
            found = ucp.load(directory / "read.ucp")
        return (
            "whole"
            if _holds(found, number, only_weights=format_name == "safetensors")
            else "half: read without a word"
        )


def _detected(path: Path, format_name: str) -> str:
    """A user names the format, or has it found out: whatever is said here comes of either."""
    from ucpformat.conversion.convert import detect_format

    return detect_format(path) if path.exists() else format_name


def _holds(found: Mapping[str, object], number: int, *, only_weights: bool = False) -> bool:
    expected = content(number)
    model = found.get("model", found)
    return (
        isinstance(model, Mapping)
        and all(np.array_equal(model.get(name, ()), data) for name, data in expected["model"].items())
        and (only_weights or found.get("step") == number)
    )


class _written:  # noqa: N801 - used as a function
    """A state in a directory, for as long as the block lasts."""

    def __init__(self, state: State, directory: Path) -> None:
        self._state = state
        self._directory = directory

    def __enter__(self) -> Path:
        for path, data in self._state.items():
            place = self._directory / path
            if data is None:
                os.makedirs(place, exist_ok=True)
            else:
                os.makedirs(place.parent, exist_ok=True)
                place.write_bytes(data)
        return self._directory

    def __exit__(self, *_: object) -> None:
        for entry in self._directory.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
