"""What a run gives back: frozen values with typed fields, and the same in plain values for JSON."""

from __future__ import annotations

from probekit.values.plain import Result as Result
from probekit.values.plain import to_plain as to_plain
