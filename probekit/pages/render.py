"""Templates filled with plain values: what stands in a value is text on the page, whatever it looks like."""

from __future__ import annotations

import base64
from functools import cache
from typing import TYPE_CHECKING, Any

from probekit.pages import formats

if TYPE_CHECKING:
    import jinja2

FILTERS = ("number", "upper", "count", "percent", "interval", "points", "words", "one_line")
HTML, MARKDOWN = ".html.j2", ".md.j2"


def render(template: str, **values: Any) -> str:
    """The page that a template makes of these values."""
    found = _environment(template.endswith(HTML)).get_template(template)
    return found.render(**values)


@cache
def _environment(is_html: bool) -> jinja2.Environment:
    import jinja2  # which a command that writes no page does not wait for

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("probekit.pages"),
        autoescape=is_html,
        finalize=None if is_html else formats.escaped,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: getattr(formats, name) for name in FILTERS}
    if not is_html:
        environment.filters |= {"code": formats.code, "raw": formats.Markdown}
    return environment


def image(content: bytes) -> str:
    """A PNG as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
