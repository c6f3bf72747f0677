"""Reports: a stream of lines, one JSON document, Markdown, and a badge."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ucp_conformance import __version__
from ucp_conformance.connection import Connection
from ucp_conformance.explain import about
from ucp_conformance.page import page
from ucp_conformance.resources import protocol_validator
from ucp_conformance.results import BAD, ROLES, Result, badge, classes
from ucp_conformance.vectors import vectors_digest

__all__ = ["Stream", "make_report", "markdown", "write_reports"]


class Stream:
    """Newline-delimited JSON: a header, results as they come, a footer; without a footer it is not whole."""

    def __init__(self, out: IO[str], header: dict[str, Any]) -> None:
        self.out = out
        self.count = 0
        self._line({"header": header})

    def _line(self, value: dict[str, Any]) -> None:
        self.out.write(json.dumps(value) + "\n")
        self.out.flush()

    def tell(self, result: Result) -> None:
        """Print one result."""
        self.count += 1
        self._line({"result": result.to_json()})

    def close(self) -> None:
        """Print the footer."""
        self._line({"footer": {"results": self.count}})


def suite_document(profile: str, seed: int, only: str = "") -> dict[str, Any]:
    """Return what was run; ``only`` stands in it where not everything was."""
    part = {"only": only} if only else {}
    return part | {
        "name": "ucp-conformance",
        "version": __version__,
        "vectors": vectors_digest(),
        "profile": profile,
        "seed": seed,
    }


def make_report(
    suite: dict[str, Any], connections: Sequence[Connection], results: Sequence[Result]
) -> dict[str, Any]:
    """Return the whole report as a document that meets `report.schema.json`."""
    drivers = []
    for connection in connections:
        hello = connection.claims.document if connection.claims is not None else {"roles": []}
        # What passes a part of the suite has not earned a class.
        earned = classes(
            [] if "only" in suite else results, connection.label, hello["roles"], hello.get("profiles", [])
        )
        drivers.append({"label": connection.label, "hello": hello, "classes": earned, "badge": badge(earned)})
    report = {
        "suite": suite,
        "drivers": drivers,
        "results": [result.to_json() for result in results],
        "totals": dict(sorted(Counter(result.outcome for result in results).items())),
    }
    protocol_validator("report").validate(report)
    return report


def markdown(report: dict[str, Any], *, most: int = 50) -> str:
    """Return a summary for a job's page."""
    lines = ["# UCP conformance", ""]
    lines += [
        f"Vectors `{report['suite']['vectors'][:19]}`, profile {report['suite']['profile']}, "
        f"seed {report['suite']['seed']}: "
        + ", ".join(f"{count} {outcome}" for outcome, count in report["totals"].items()),
        "",
        "| implementation | " + " | ".join(ROLES) + " | badge |",
        "|---" * (len(ROLES) + 2) + "|",
    ]
    for driver in report["drivers"]:
        cells = [str(driver["classes"].get(role) or "-") for role in ROLES]
        lines.append(f"| {driver['label']} | " + " | ".join(cells) + f" | {driver['badge']['message']} |")
    bad = [result for result in report["results"] if result["outcome"] in BAD]
    if bad:
        lines += ["", f"## Failures ({len(bad)})"]
        for result in bad[:most]:
            lines += ["", f"### {result['outcome']}: `{result['id']}` ({result['driver']})", "", "```text"]
            lines += [*about(result), "```"]
        if len(bad) > most:
            lines += ["", f"... and {len(bad) - most} more, in `report.json` and `index.html`"]
    lines += ["", "## Requirements", "", *_requirements(report)]
    return "\n".join(lines) + "\n"


def _requirements(report: dict[str, Any]) -> list[str]:
    """Return the table of requirements: checks that hold each, passed, failed and left out per implementation."""
    labels = [driver["label"] for driver in report["drivers"]]
    counts: dict[str, dict[str, Counter[str]]] = {}
    for result in report["results"]:
        outcome = result["outcome"]
        kind = (
            "passed"
            if outcome == "pass"
            else "failed"
            if outcome in BAD or outcome == "xfail"
            else "left out"
        )
        for requirement in result["requirements"]:
            counts.setdefault(requirement, {}).setdefault(result["driver"], Counter())[kind] += 1
    lines = ["| requirement | " + " | ".join(labels) + " |", "|---" * (len(labels) + 1) + "|"]
    for requirement, found in sorted(counts.items()):
        cells = [
            ", ".join(f"{count} {kind}" for kind, count in sorted(found[label].items()))
            if label in found
            else "-"
            for label in labels
        ]
        lines.append(f"| {requirement} | " + " | ".join(cells) + " |")
    return lines


def write_reports(report: dict[str, Any], folder: Path) -> None:
    """Write report.json, summary.md, index.html, a badge per driver, and failed exchanges as files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "summary.md").write_text(markdown(report), encoding="utf-8")
    (folder / "index.html").write_text(page(report), encoding="utf-8")
    for driver in report["drivers"]:
        (folder / f"badge-{driver['label']}.json").write_text(
            json.dumps(driver["badge"]) + "\n", encoding="utf-8"
        )
    for number, result in enumerate(result for result in report["results"] if "case" in result):
        (folder / f"case-{number}.json").write_text(
            json.dumps(result["case"], indent=1) + "\n", encoding="utf-8"
        )
