"""``ucp diff``: what changed between two checkpoints, by logical content."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ucpformat.cli.report import format_option, printable
from ucpformat.comparison import Comparison, Difference
from ucpformat.comparison import diff as compare_paths

__all__ = ["diff"]


@click.command()
@click.argument("first")
@click.argument("second")
@click.option(
    "--bytes",
    "reads",
    is_flag=True,
    help="Read and verify every byte of both, instead of comparing the digests that they record.",
)
@format_option
@click.pass_context
def diff(context: click.Context, first: str, second: str, reads: bool, output: str) -> None:
    """Compare what two checkpoints hold: names, shapes, types, tensors and values. Exit code 1 if they differ.

    Tensors are compared by the digests of their content that were recorded when they were saved: this takes no time,
    and does not see damage that came later. --bytes sees it. Storage, chunks, compression and layouts do not count:
    they say how, not what.
    """
    comparison = compare_paths(first, second, by="bytes" if reads else "digests")
    if output == "json":
        report = {
            "equal": comparison.is_equal,
            "slots_by_digest": comparison.slots_by_digest,
            "slots_by_bytes": comparison.slots_by_bytes,
            "differences": [asdict(difference) for difference in comparison.differences],
        }
        click.echo(json.dumps(report, indent=2))
    else:
        for difference in comparison.differences:
            click.echo(printable(_line(difference)))
        verdict = "equal" if comparison.is_equal else f"{len(comparison.differences)} differences"
        click.echo(f"{verdict}{_basis(comparison, reads=reads)}")
    if not comparison.is_equal:
        context.exit(1)


def _basis(comparison: Comparison, *, reads: bool) -> str:
    """Return how tensors were compared, in words."""
    if reads:
        return ", by every byte"
    ways = []
    if comparison.slots_by_digest:
        ways.append(f"recorded digests of {comparison.slots_by_digest} tensors")
    if comparison.slots_by_bytes:
        ways.append(f"the bytes of {comparison.slots_by_bytes}")
    return f", by {' and '.join(ways)}; --bytes reads and verifies every byte" if ways else ""


def _line(difference: Difference) -> str:
    sign = {"removed": "-", "added": "+", "changed": "~"}[difference.kind]
    return (
        f"{sign} {difference.what}: {difference.detail}" if difference.detail else f"{sign} {difference.what}"
    )
