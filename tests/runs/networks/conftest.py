"""The networks of the shop, opened by the library."""

from __future__ import annotations

import pytest

from probekit import Run
from tests.cli.networks.conftest import one_thread as one_thread
from tests.cli.networks.conftest import poisoned as poisoned
from tests.cli.networks.conftest import shop as shop
from tests.cli.networks.conftest import trained as trained
from tests.cli.networks.shop import Shop
from tests.runs.conftest import Opened


@pytest.fixture
def opened(shop: Shop) -> Opened:
    """Opens a run with the shop's cache."""
    return lambda path: Run.open(path, store=shop.store)
