"""``ucp-conformance``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from ucp_conformance import __version__
from ucp_conformance.connection import Connection, DriverError
from ucp_conformance.explain import UnknownCaseError, explained
from ucp_conformance.generated import replay as replay_case
from ucp_conformance.generated import run_lives, run_pairs
from ucp_conformance.log_races import run_races
from ucp_conformance.log_sequences import writes_logs
from ucp_conformance.promote import promote as promote_case
from ucp_conformance.report import Stream, make_report, markdown, suite_document, write_reports
from ucp_conformance.resources import protocol_validator
from ucp_conformance.results import BAD, Result, apply_expected, read_expected
from ucp_conformance.stateful import run_stateful
from ucp_conformance.static import run_static
from ucp_conformance.vectors import all_vectors

__all__ = ["main"]

PROFILES: Final = {"quick": (30, 2, 10), "default": (300, 10, 40), "nightly": (3000, 200, 600)}
"""Examples per pair, sequences, and lives of logs per pair, who races as often."""


@click.group()
@click.version_option(__version__)
def main() -> None:
    """Find out whether an implementation of the universal checkpoint format conforms."""


def _connections(drivers: Sequence[str], timeout: float) -> list[Connection]:
    found: list[Connection] = []
    for number, text in enumerate(drivers):
        label, sign, command = text.partition("=")
        named = bool(sign) and label.replace("-", "").replace("_", "").isalnum()
        found.append(
            Connection(
                command if named else text, label=label if named else f"driver{number}", timeout=timeout
            )
        )
    if len({connection.label for connection in found}) < len(found):
        raise click.UsageError("give every driver a name of its own: --driver NAME=COMMAND")
    return found


_driver = click.option(
    "--driver", "drivers", multiple=True, required=True, help="Command that starts a driver, or NAME=COMMAND."
)
_timeout = click.option("--timeout", default=30.0, show_default=True, help="Seconds that a reply may take.")


@main.command()
@_driver
@_timeout
@click.option("--profile", type=click.Choice(sorted(PROFILES)), default="default", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of generated cases and sequences.")
@click.option("--only", default="", help="Static cases whose id contains this text, and no other mode.")
@click.option(
    "--lives", type=click.IntRange(1), help="So many lives and races of logs per pair, and no other mode."
)
@click.option(
    "--report", "folder", type=click.Path(file_okay=False, path_type=Path), help="Folder for reports."
)
@click.option(
    "--xfail", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Expected failures."
)
def run(
    drivers: tuple[str, ...],
    timeout: float,
    profile: str,
    seed: int,
    only: str,
    lives: int | None,
    folder: Path | None,
    xfail: Path | None,
) -> None:
    """Run vectors, exchanges and logs of all ordered pairs, and sequences. Exit code 1 for failures."""
    connections = _connections(drivers, timeout)
    expected = read_expected(xfail) if xfail is not None else []
    if only and lives is not None:
        raise click.UsageError("--only and --lives each name the one mode that is run")
    examples, sequences, lives_of_all = PROFILES[profile]
    suite = suite_document(profile, seed, only if lives is None else "logs/")
    results: list[Result] = []
    with ExitStack() as stack:
        for connection in connections:
            stack.callback(connection.kill)
        out = sys.stdout
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            out = stack.enter_context((folder / "results.ndjson").open("w", encoding="utf-8"))
        stream = Stream(out, suite)

        def tell(result: Result) -> None:
            stream.tell(apply_expected([result], expected)[0])

        sound = [connection for connection in connections if _greets(connection, results, tell)]
        if lives is not None:
            if sound and not any(writes_logs(connection) for connection in sound):
                raise click.UsageError("no driver has update-log among its writes_features: nobody logs")
            results += run_lives(sound, tell, examples=lives, seed_=seed)
            results += run_races(sound, tell, rounds=lives, seed_=seed)
        for connection in sound if lives is None else ():
            results += run_static(connection, tell, only=only)
        if not only and lives is None:
            lively = [connection for connection in sound if connection.failures_in_a_row == 0]
            results += run_pairs(lively, tell, examples=examples, seed_=seed)
            results += run_stateful(lively, tell, sequences=sequences, seed_=seed)
            results += run_lives(lively, tell, examples=lives_of_all, seed_=seed)
            results += run_races(lively, tell, rounds=lives_of_all, seed_=seed)
        for connection in sound:
            results.append(_farewell(connection))
            tell(results[-1])
        stream.close()
    results = apply_expected(results, expected)
    report = make_report(suite, connections, results)
    if folder is not None:
        write_reports(report, folder)
    click.echo(markdown(report), err=folder is None)
    sys.exit(1 if any(result.outcome in BAD for result in results) else 0)


def _greets(connection: Connection, results: list[Result], tell: object) -> bool:
    try:
        connection.hello()
    except DriverError as wrong:
        result = Result(
            "protocol/hello", connection.label, "reader", "inspect", "protocol", detail=str(wrong)
        )
        results.append(result)
        if callable(tell):
            tell(result)
        return False
    return True


def _farewell(connection: Connection) -> Result:
    """Return whether the driver ends by itself when it is asked to."""
    reset = connection.request("reset", {})
    reply = connection.shutdown() if reset.kind == "result" else reset
    outcome = (
        "pass" if reply.kind == "result" else reply.kind if reply.kind in ("crash", "timeout") else "protocol"
    )
    roles = connection.claims.document["roles"] if connection.claims else []
    role = next(iter(roles), "reader")
    detail = "" if outcome == "pass" else str(reply.body)
    return Result("protocol/shutdown", connection.label, role, "inspect", outcome, detail=detail, ms=reply.ms)


@main.command()
@_driver
@_timeout
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def replay(drivers: tuple[str, ...], timeout: float, file: Path) -> None:
    """Run the generated case in FILE again: the first driver writes, the last one reads."""
    case = json.loads(file.read_bytes())
    protocol_validator("exchange").validate(case)
    connections = _connections(drivers, timeout)
    try:
        fault = replay_case(case, connections[0], connections[-1])
    finally:
        for connection in connections:
            connection.kill()
    if fault is None:
        click.echo("no failure")
        return
    click.echo(f"{fault.role} {fault.blamed}: {fault.outcome}: {fault.why}")
    sys.exit(1)


@main.command()
@click.argument("case")
def explain(case: str) -> None:
    """Say what the static case CASE holds, asks and expects."""
    try:
        click.echo(explained(case), nl=False)
    except UnknownCaseError as unknown:
        raise click.UsageError(str(unknown)) from None


@main.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", default="", help="Cases whose id contains this text.")
def unpack(folder: Path, only: str) -> None:
    """Write static cases as plain files into FOLDER: case.json, checkpoint/ and expected/ of each."""
    chosen = [vector for vector in all_vectors() if only in vector.id]
    for vector in chosen:
        vector.unpack(folder / vector.id)
    click.echo(f"{len(chosen)} case{'s' * (len(chosen) != 1)} in {folder}")


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("name")
@click.option(
    "--vectors", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of vectors."
)
def promote(file: Path, name: str, vectors: Path) -> None:
    """Make the generated case in FILE the static case good/promoted/NAME below the folder of vectors."""
    case = json.loads(file.read_bytes())
    protocol_validator("exchange").validate(case)
    if case["kind"] != "exchange":
        raise click.UsageError("only an exchange becomes a static case; a life of a log is a case by itself")
    click.echo(promote_case(case["plan"], name, vectors))
