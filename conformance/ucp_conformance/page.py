"""The report as one static HTML page, without scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Any

from ucp_conformance.explain import about, sentences
from ucp_conformance.results import BAD, ROLES

__all__ = ["page"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { border: 1px solid #ccc; padding: .25rem .6rem; }
th { background: #f3f3f3; text-align: left; } .pass { background: #d9f2dc; } .fail { background: #f8d3d3; }
.other { background: #fdf3cf; } .none { color: #999; } .text { font-size: 13px; }
pre { background: #f6f6f6; padding: .6rem; overflow: auto; }
details { margin: .4rem 0; } summary { cursor: pointer; }
"""


def page(report: dict[str, Any]) -> str:
    """Return the whole page."""
    suite = report["suite"]
    totals = ", ".join(f"{count} {escape(outcome)}" for outcome, count in report["totals"].items())
    about = f"""<p>Suite {escape(suite["version"])}, vectors <code>{escape(suite["vectors"][:23])}</code>,
profile {escape(suite["profile"])}, seed {suite["seed"]}: {totals}.</p>"""
    return "\n".join(
        (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>UCP conformance</title>",
            f"<style>{_STYLE}</style></head><body><h1>UCP conformance</h1>",
            about,
            _classes(report),
            _pairs(report),
            _failures(report),
            _requirements(report),
            "</body></html>",
        )
    )


def _cell(outcomes: Sequence[str]) -> str:
    if not outcomes:
        return "<td class='none'>-</td>"
    bad = sum(outcome in BAD for outcome in outcomes)
    passed = sum(outcome == "pass" for outcome in outcomes)
    kind = "fail" if bad else "pass" if passed == len(outcomes) else "other"
    return f"<td class='{kind}'>{passed}/{len(outcomes)}</td>"


def _classes(report: dict[str, Any]) -> str:
    rows = ["<h2>Classes earned</h2><table><tr><th>implementation</th>"]
    rows += [f"<th>{role}</th>" for role in ROLES] + ["<th>badge</th></tr>"]
    for driver in report["drivers"]:
        about = driver["hello"].get("implementation", {})
        name = f"{driver['label']} ({about.get('name', '?')} {about.get('version', '')}, {about.get('language', '?')})"
        rows.append(f"<tr><th>{escape(name)}</th>")
        rows += [f"<td>{escape(str(driver['classes'].get(role) or '-'))}</td>" for role in ROLES]
        rows.append(f"<td>{escape(driver['badge']['message'])}</td></tr>")
    return "".join(rows) + "</table>"


def _pairs(report: dict[str, Any]) -> str:
    labels = [driver["label"] for driver in report["drivers"]]
    rows = ["<h2>Writer and reader</h2><table><tr><th>writer \\ reader</th>"]
    rows += [f"<th>{escape(label)}</th>" for label in labels] + ["</tr>"]
    for writer in labels:
        rows.append(f"<tr><th>{escape(writer)}</th>")
        for reader in labels:
            prefix = f"generated/{writer}-to-{reader}:"
            rows.append(_pair([r for r in report["results"] if r["id"].startswith(prefix)]))
        rows.append("</tr>")
    return "".join(rows) + "</table>"


def _pair(results: Sequence[dict[str, Any]]) -> str:
    """Return what came of one writer and one reader: how much they exchanged, or who failed."""
    if not results:
        return "<td class='none'>-</td>"
    rest = [result for result in results if result["outcome"] != "pass"]
    if not rest:
        return f"<td class='pass'>pass<br>{escape(results[0]['detail'])}</td>"
    said = "; ".join(f"{result['driver']} as {result['role']}: {result['outcome']}" for result in rest)
    kind = "fail" if any(result["outcome"] in BAD for result in rest) else "other"
    return f"<td class='{kind}'>{escape(said)}</td>"


def _requirements(report: dict[str, Any]) -> str:
    known = sentences()
    labels = [driver["label"] for driver in report["drivers"]]
    by: dict[str, dict[str, list[str]]] = {}
    for result in report["results"]:
        for requirement in result["requirements"]:
            by.setdefault(requirement, {}).setdefault(result["driver"], []).append(result["outcome"])
    rows = [
        "<h2>Requirements</h2><p>Checks passed, of those made or left out.</p><table><tr><th>requirement</th>"
    ]
    rows += [f"<th>{escape(label)}</th>" for label in labels] + ["<th></th></tr>"]
    for requirement, found in sorted(by.items()):
        rows.append(
            f"<tr><th>{requirement}</th>"
            + "".join(_cell(found.get(label, [])) for label in labels)
            + f"<td class='text'>{escape(known.get(requirement, ''))}</td></tr>"
        )
    return "".join(rows) + "</table>"


def _failures(report: dict[str, Any]) -> str:
    bad = [result for result in report["results"] if result["outcome"] in BAD or result["outcome"] == "xfail"]
    rows = [f"<h2>Failures ({len(bad)})</h2>"]
    for result in bad:
        head = f"{result['outcome']}: {result['id']} ({result['driver']})"
        rows.append(
            f"<details><summary>{escape(head)}</summary><pre>{escape(chr(10).join(about(result)))}</pre>"
        )
        if "case" in result:
            rows.append(f"<p>The smallest case:</p><pre>{escape(json.dumps(result['case'], indent=1))}</pre>")
        if "stderr" in result:
            rows.append(f"<p>Standard error:</p><pre>{escape(result['stderr'])}</pre>")
        rows.append("</details>")
    return "\n".join(rows)
