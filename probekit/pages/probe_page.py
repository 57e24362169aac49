"""The page about one probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.pages.pictures import Picture, drawn
from probekit.pages.probe_figures import probe_figures
from probekit.pages.render import image, render
from probekit.pages.svg import inline

ABOUT = ("data set", "backbone", "judged on", "trained on", "ridge", "warning")
"""Facts that are no measure of how good a probe is."""


def probe_page(facts: Sequence[tuple[str, str]], plain: Mapping[str, Any], thumbnails: Mapping[str, bytes]) -> str:
    """One self-contained page.

    facts: what is worth a line, as texts. plain: every number. thumbnails: small pictures (PNG) of rows by id.
    """
    about = ((name, text, False) for name, text in facts if name in ABOUT)
    times = ((f"time to {name}", f"{seconds:.3g} s", False) for name, seconds in plain["seconds"].items())
    return render(
        "probe.html.j2",
        facts=facts,
        plain=plain,
        drawn=figures_of(drawn(probe_figures(plain)), "p"),
        thumbnails={row: image(content) for row, content in thumbnails.items()},
        about=ABOUT,
        made=[*about, *times],
    )


def figures_of(pictures: Sequence[Picture], prefix: str) -> dict[str, dict[str, str]]:
    """Pictures as parts of a page, with what they show in words."""
    return {
        "figures": {one.key: inline(one.svg, name=f"{prefix}-{one.key}", title=one.alt) for one in pictures},
        "alts": {one.key: one.alt for one in pictures},
    }
