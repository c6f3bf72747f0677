"""Whole tensors of the shards of tensor-parallel ranks, where patterns say how a job splits what (SPEC-PATTERNS).

What is known is the shards; patterns speak of whole tensors. The shape of the whole is that of the shards in all
dims but one, in which it is their sum, or in none: the one whose layout gives exactly these shards.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ucpformat.conversion.contract.registry import named_document, named_integers
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Lowering, lower
from ucpformat.patterns import Patterns, load_patterns, parse_patterns, pattern_names, resolve

__all__ = ["ShardPatterns"]

_NUMBER: Final = re.compile(r"(?:^|\.)(\d{1,6})(?=\.|$)")
_SHAPELESS: Final = ("UCP-E-PATTERN", "UCP-E-LAYOUT", "UCP-E-SCHEMA")


class ShardPatterns:
    """Patterns for ``degree`` tensor-parallel ranks, and nothing else parallel."""

    def __init__(
        self, patterns: Patterns, parameters: Mapping[str, int], degree: int, layers: int = 1
    ) -> None:
        known = [entry.name for entry in patterns.parameters.entries]
        self._patterns = patterns
        usual = {"tp": degree, "layers": layers}
        self._parameters = {name: usual[name] for name in known if name in usual} | dict(parameters)
        self._degree = degree

    @classmethod
    def of_settings(
        cls, settings: Mapping[str, str], degree: int, names: Sequence[str]
    ) -> ShardPatterns | None:
        """Return what ``patterns`` and ``pattern_parameters`` ask for; None where they are not set.

        ``names`` are of parameters: a number in one may be that of a layer.

        Raises:
            UcpError: ``UCP-E-PATTERN`` for a document that is not there or malformed.
        """
        chosen = settings.get("patterns")
        if chosen is None:
            return None
        numbers = [int(match) for name in names for match in _NUMBER.findall(name)]
        parameters = named_integers(settings.get("pattern_parameters", ""), at="pattern_parameters")
        document = named_document(chosen, "the patterns", pattern_names(), load_patterns, parse_patterns)
        return cls(document, parameters, degree, 1 + max(numbers, default=0))

    def of_whole(self, name: str, slot: str, shape: tuple[int, ...]) -> Lowering:
        """Return where each rank's shard lies in a whole tensor of ``shape``.

        Raises:
            UcpError: what resolving the patterns raises; ``UCP-E-MISMATCH`` where they say that no rank holds it.
        """
        layout = resolve(self._patterns, {name: {slot: shape}}, self._parameters).get((name, slot))
        if layout is None:
            raise error("UCP-E-MISMATCH", f"the patterns say that no rank holds {name!r}/{slot!r}")
        return lower(layout, shape)

    def lowering(self, name: str, slot: str, shards: Sequence[tuple[int, ...]], at: str) -> Lowering | None:
        """Return where each rank's shard lies in the whole tensor; None where the patterns say that no rank holds it.

        Raises:
            UcpError: ``UCP-E-UNMATCHED`` where no rule matches, ``UCP-E-SOURCE`` where its layout, of a whole of any
                shape, does not give these shards, ``UCP-E-PATTERN`` for parameters that do not fit the document.
        """
        refusal: UcpError | None = None
        fitting = []
        for shape in _wholes(shards):
            try:
                layout = resolve(self._patterns, {name: {slot: shape}}, self._parameters).get((name, slot))
                if layout is None:
                    return None
                lowered = lower(layout, shape)
            except UcpError as problem:
                if problem.code not in _SHAPELESS:
                    raise
                refusal = problem
                continue
            held = {rank: region.local_map.shape for region in lowered.regions() for rank in region.holders}
            if held == dict(enumerate(shards)):
                fitting.append(lowered)
        if fitting:
            return fitting[0]
        if refusal is not None:
            raise refusal
        raise error(
            "UCP-E-SOURCE",
            f"the shards of {name!r} have shapes {[list(shard) for shard in shards]}, which the patterns give for no "
            "whole tensor; give other patterns or parameters",
            at=at,
        )


def _wholes(shards: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return shapes that the whole may have, the largest first: with the padding of shards, nothing is dropped."""
    first = shards[0]
    if any(len(shard) != len(first) for shard in shards):
        return []
    wholes = [
        (*first[:dim], sum(shard[dim] for shard in shards), *first[dim + 1 :]) for dim in range(len(first))
    ]
    return sorted({*wholes, first}, key=lambda shape: (-math.prod(shape), shape))
