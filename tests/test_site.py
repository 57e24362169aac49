"""`make docs`: built without a warning, and sound in a browser at both widths and in both themes, README first."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import probekit
from probekit.runs.run import Verb
from tests.browser import WIDTHS, Browser
from tests.browser import chromium as chromium
from tests.pages import PAGES, ROOT

SETTINGS = ROOT / "docs" / "site" / "mkdocs.yml"
API = ROOT / "docs" / "api"


class Silent(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, in another folder."""
    if find_spec("material") is None or find_spec("mkdocstrings") is None:
        pytest.skip("the tools of `make docs` are not installed: give that command first")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(SETTINGS), "-d", str(folder)]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=told, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not re.search("WARNING|ERROR", done.stdout + done.stderr), done.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """Where the site is served: another port for every test, as a browser remembers the theme of an address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Silent, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_public_name_stands_on_an_api_page() -> None:
    text = "\n".join(page.read_text() for page in API.glob("*.md"))
    documented = set(re.findall(r"^::: probekit\.(\w+)$", text, re.MULTILINE))
    assert documented == set(probekit.__all__) - {"__version__"}
    verbs = {(one._module, one._name) for one in vars(probekit.Run).values() if isinstance(one, Verb)}
    assert verbs
    assert verbs == set(re.findall(r"^::: (probekit\.runs\.\w+)\.(\w+)$", text, re.MULTILINE))


def test_the_command_that_builds_it_is_the_makefiles() -> None:
    made = (ROOT / "Makefile").read_text()
    assert "mkdocs build --strict --config-file docs/site/mkdocs.yml" in made
    assert "font: false" in SETTINGS.read_text()


@pytest.mark.slow
def test_the_site_has_every_page_and_fetches_nothing(site: Path) -> None:
    made = {page.relative_to(site).as_posix() for page in site.rglob("*.html")}
    wanted = {"index.html", "options.html", "contributing.html"} | {f"{page.stem}.html" for page in PAGES[1:]}
    assert wanted | {f"api/{page.stem}.html" for page in API.glob("*.md")} | {"404.html"} == made
    for page in site.rglob("*.html"):
        fetched = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"?(https?://[^\s\">]+)", page.read_text())
        assert fetched == [], page.name


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_readme_and_the_pages_are_sound_in_a_browser(
    width: int, dark: bool, site: Path, address: str, chromium: Browser, tmp_path: Path
) -> None:
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site).as_posix()
        if name == "404.html":
            continue
        shot = tmp_path / f"{page.stem}-{width}.png"
        seen = chromium.look(f"{address}/{name}", width=width, dark=dark, picture=shot)
        beyond = [one for one in seen.beyond if "md-sidebar" not in one]  # the drawer waits beside a narrow page
        assert (seen.complaints, beyond, seen.width) == ((), [], width), name
        assert [one for one in seen.requested if not one.startswith((address, "blob:"))] == [], name
        assert seen.dark == dark, name
        assert shot.read_bytes().startswith(b"\x89PNG")
        assert name != "index.html" or "Five lines of Python" in seen.text
