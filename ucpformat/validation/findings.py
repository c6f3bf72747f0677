"""Collecting problems instead of stopping at the first (SPEC section 18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from ucpformat.errors import Problem, UcpError
from ucpformat.storage.stores.repetition import is_not_repeated
from ucpformat.validation.damage import Damage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

__all__ = ["Findings"]

_OF_BYTES: Final = frozenset({"UCP-E-DIGEST", "UCP-E-CHECKSUM", "UCP-E-CODEC", "UCP-E-PADDING"})


class Findings:
    """Problems in the order they were found, each once, and the damage that was found with them."""

    def __init__(self) -> None:
        self._problems: dict[Problem, None] = {}
        self.damage = Damage()

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._problems)

    def told(self) -> list[Problem]:
        """Return the problems but those of the bytes of an object that has another length (UCP-V-005)."""
        other = {problem.at for problem in self._problems if problem.code == "UCP-E-LENGTH"}
        return [one for one in self._problems if one.at not in other or one.code not in _OF_BYTES]

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, *problems: Problem) -> None:
        """Record problems."""
        self.extend(problems)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Record problems."""
        self._problems.update(dict.fromkeys(problems))

    def give_up(self, refusal: UcpError) -> None:
        """Record that the store does not answer; once, since it says nothing about the checkpoint."""
        if not any(problem.code == refusal.code for problem in self._problems):
            self.add(refusal.problem())

    def collecting(self) -> _Collecting:
        """Return a context that records what its block raises, and goes on behind it; `has_refused` then tells so.

        What a store raises that does not answer goes on upward: everything behind it would fail in the same way.
        """
        return _Collecting(self)


class _Collecting:
    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self.has_refused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(value, UcpError) or is_not_repeated(value):
            return False
        self.has_refused = True
        self._findings.add(value.problem())
        return True
