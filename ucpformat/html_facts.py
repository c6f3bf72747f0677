"""Facts and tables as HTML for notebooks: no scripts, nothing from elsewhere, and names as text alone."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from ucpformat.text import printable, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["WHOLE_STYLE", "facts_in_html", "html_facts", "text_in_html"]

WHOLE_STYLE: Final = "font-family:ui-monospace,monospace;font-size:90%;line-height:1.5"
_LONGEST: Final = 120
_ROWS: Final = 100


def text_in_html(text: str) -> str:
    """Return a text that nobody chose as HTML that shows it: not markup, on one line, and no longer than a name.

    >>> text_in_html("<script>")
    '&lt;script&gt;'
    """
    return html.escape(shortened(printable(text), _LONGEST))


def facts_in_html(facts: Mapping[str, object]) -> str:
    """Return a line for each fact, by name.

    >>> facts_in_html({"step": 3})
    '<div><b>step</b> 3</div>'
    """
    return "".join(
        f"<div><b>{text_in_html(name)}</b> {text_in_html(str(fact))}</div>" for name, fact in facts.items()
    )


def html_facts(
    facts: Mapping[str, object], headings: Sequence[str] = (), rows: Sequence[Sequence[object]] = ()
) -> str:
    """Return facts, and below them a table of the first hundred ``rows``, if there are any."""
    table = ""
    if rows:
        cells = ["".join(f"<th>{text_in_html(heading)}</th>" for heading in headings)]
        cells += ["".join(f"<td>{text_in_html(str(cell))}</td>" for cell in row) for row in rows[:_ROWS]]
        table = f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"
    more = f"<div>and {len(rows) - _ROWS:,} more</div>" if len(rows) > _ROWS else ""
    return f'<div style="{WHOLE_STYLE}">{facts_in_html(facts)}{table}{more}</div>'
