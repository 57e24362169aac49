"""A progress bar below the cell that runs, in a notebook; scripts and terminals stay quiet.

It is plain HTML that the notebook replaces: no widgets have to be installed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from probekit.encoding.options import ExtractProgress

PAUSE = 0.1
"""Seconds between two changes of a bar."""


def notebook_bar(what: str) -> Callable[[ExtractProgress], None]:
    """What is called with the progress of an extraction: a bar in a notebook, elsewhere nothing."""
    display = _display()
    if display is None:
        return lambda now: None
    shown, changed = None, 0.0

    def advance(now: ExtractProgress) -> None:
        nonlocal shown, changed
        if shown is not None and now.rows != now.total and time.monotonic() - changed < PAUSE:
            return
        drawn, changed = _Bar(bar_html(what, now), bar_text(what, now)), time.monotonic()
        if shown is None:
            shown = display(drawn, display_id=True)
        else:
            shown.update(drawn)

    return advance


def bar_html(what: str, now: ExtractProgress) -> str:
    """A bar, or where the end is not known only the count."""
    bar = "" if now.total is None else f'<progress value="{now.rows}" max="{max(1, now.total)}"></progress> '
    return f'<div style="font-variant-numeric: tabular-nums">{bar}{escape(bar_text(what, now))}</div>'


def bar_text(what: str, now: ExtractProgress) -> str:
    """How far it is, in words."""
    whole = "" if now.total is None else f" of {now.total:,}"
    rate = f", {now.encoded / now.seconds:.0f}/s" if now.encoded and now.seconds else ""
    return f"{what}: {now.rows:,}{whole} rows, {now.encoded:,} encoded{rate}, {now.reused:,} reused"


class _Bar:
    """What a notebook shows, and what it shows where it shows text only."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def _display() -> Any:
    """IPython's `display` where a notebook's kernel runs this; who has not imported IPython runs no notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or not hasattr(shell, "kernel"):
        return None
    return ipython.display.display
