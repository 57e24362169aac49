"""A drawn SVG as part of a page: its own names, its title, and the page's colours instead of fixed ones."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
THEMED = {
    "#0072b2": "var(--blue)",
    "#e69f00": "var(--orange)",
    "#009e73": "var(--green)",
    "#6e6e6e": "var(--soft)",
    "#b0b0b0": "var(--grid)",
    "#000000": "currentColor",
}
"""What a fixed colour is on a page that may be light or dark."""


def inline(text: str, *, name: str, title: str) -> str:
    """The picture as an element of a page, where `name` is not used for another one."""
    root = ElementTree.fromstring(text)
    _drop(root, "metadata", "style")
    known = {one.get("id", ""): f"{name}-{one.get('id')}" for one in root.iter() if one.get("id")}
    for element in root.iter():
        _renamed(element, known)
        _themed(element)
    width = float(root.get("viewBox", "0 0 0 0").split()[2]) * 4 / 3  # points in pixels
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    root.set("style", f"max-width: {width:.0f}px")
    told = ElementTree.Element("title", id=f"{name}-title")
    told.text = title
    root.insert(0, told)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    return ElementTree.tostring(root, encoding="unicode")


def _drop(root: ElementTree.Element, *kinds: str) -> None:
    for parent in root.iter():
        for child in [one for one in parent if one.tag in {f"{SVG}{kind}" for kind in kinds}]:
            parent.remove(child)


def _renamed(element: ElementTree.Element, known: dict[str, str]) -> None:
    """References lead to the new names; names that nothing refers to do no harm."""
    for attribute, value in list(element.attrib.items()):
        if attribute == "id":
            element.set("id", known[value])
        elif attribute == LINK:
            del element.attrib[LINK]
            element.set("href", f"#{known[value[1:]]}" if value.startswith("#") else value)
        elif "url(#" in value:
            element.set(attribute, re.sub(r"url\(#([^)]+)\)", lambda found: f"url(#{known[found[1]]})", value))


def _themed(element: ElementTree.Element) -> None:
    style = element.get("style")
    if style is None:
        return
    if element.tag != f"{SVG}text":
        style = style.replace("fill: #ffffff", "fill: none").replace("stroke: #ffffff", "stroke: var(--card)")
    element.set("style", re.sub(r"#[0-9a-f]{6}", lambda found: THEMED.get(found[0], found[0]), style))
