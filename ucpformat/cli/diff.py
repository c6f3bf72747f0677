"""``ucp diff``: what changed between two checkpoints, by logical content."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import click

from ucpformat.cli.report import format_option
from ucpformat.comparison import diff as compare_paths
from ucpformat.text import human_bytes, printable

if TYPE_CHECKING:
    from ucpformat.comparison import Comparison, Difference, TensorDifference
    from ucpformat.jsonio import JsonValue

__all__ = ["diff"]

_RANGES: Final = 4
_LONG: Final = 60


@click.command()
@click.argument("first")
@click.argument("second")
@click.option(
    "--bytes",
    "reads",
    is_flag=True,
    help="Read and verify every byte of both, instead of comparing the digests that they record.",
)
@click.option(
    "--brief", is_flag=True, help="Do not read tensors whose digests differ: say only that they do."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    metavar="T",
    help="Exit with 0 if only elements differ, by no more than T, or T times the larger one where that is above 1.",
)
@format_option
@click.pass_context
def diff(
    context: click.Context,
    first: str,
    second: str,
    reads: bool,
    brief: bool,
    tolerance: float | None,
    output: str,
) -> None:
    """Compare what two checkpoints hold: names, shapes, types, tensors and values. Exit code 1 if they differ.

    What both have from the same files, as increments of a run do, is equal. Other tensors are compared by the digests
    of their content that were recorded when they were saved: this takes no time, and does not see damage that came
    later. --bytes sees it. Of tensors that differ, what they do not share is read, to say by how much. Storage,
    chunks, compression and layouts do not count: they say how, not what.
    """
    if brief and tolerance is not None:
        raise click.UsageError("--tolerance needs what --brief does not read: leave one of them out.")
    comparison = compare_paths(
        first, second, by="bytes" if reads else "digests", measure=not brief, tolerance=tolerance
    )
    if output == "json":
        click.echo(json.dumps(comparison.to_json(), indent=2))
    else:
        for difference in comparison.differences:
            click.echo(printable(_line(difference, tolerance)))
        click.echo(f"{_verdict(comparison)}{_basis(comparison, reads=reads)}")
        for warning in comparison.warnings:
            click.echo(f"warning: {warning}; --bytes reads and verifies everything", err=True)
    is_admitted = comparison.is_equal if tolerance is None else comparison.is_within_tolerance
    if not is_admitted:
        context.exit(1)


def _verdict(comparison: Comparison) -> str:
    if comparison.is_equal:
        return "equal"
    count = len(comparison.differences)
    words = f"{count} difference{'s' if count > 1 else ''}"
    if comparison.tolerance is None:
        return words
    beyond = sum(not one.is_within(comparison.tolerance) for one in comparison.differences)
    return f"{words}, {beyond} beyond the tolerance" if beyond else f"{words}, all within the tolerance"


def _basis(comparison: Comparison, *, reads: bool) -> str:
    """Return how tensors were compared, and what was read for it, in words."""
    if reads:
        return f", by every byte ({human_bytes(comparison.fetched)} read)"
    ways = []
    if comparison.slots_by_sharing:
        plural = "s" if comparison.slots_by_sharing > 1 else ""
        ways.append(f"files that both have of {comparison.slots_by_sharing} tensor{plural}")
    if comparison.slots_by_digest:
        ways.append(f"the recorded digests of {comparison.slots_by_digest}")
    if comparison.slots_by_bytes:
        ways.append(f"the bytes of {comparison.slots_by_bytes}")
    read = f" ({human_bytes(comparison.fetched)} read)" if comparison.fetched else ""
    return f", by {', '.join(ways)}{read}" if ways else ""


def _line(difference: Difference, tolerance: float | None) -> str:
    is_near = tolerance is not None and difference.is_within(tolerance)
    sign = "=" if is_near else {"removed": "-", "added": "+", "changed": "~"}[difference.kind]
    detail = difference.detail
    if difference.tensor is not None:
        detail += _rows(difference.tensor)
    elif difference.kind == "changed" and not detail:
        detail = f"{_short(difference.old)} to {_short(difference.new)}"
    elif not detail and not difference.what.startswith("atoms/"):
        detail = _short(difference.new if difference.kind == "added" else difference.old)
    return f"{sign} {difference.what}: {detail}" if detail else f"{sign} {difference.what}"


def _rows(tensor: TensorDifference) -> str:
    if not tensor.ranges or tensor.changed_rows == tensor.rows:
        return ""
    words = [
        f"{first}" if stop == first + 1 else f"{first}:{stop}" for first, stop in tensor.ranges[:_RANGES]
    ]
    return f"; rows {', '.join(words)}{', ...' if len(tensor.ranges) > _RANGES else ''}"


def _short(value: JsonValue) -> str:
    text = json.dumps(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 3]}..."
