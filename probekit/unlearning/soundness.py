"""Statistics that no rows could have, refused: nobody has others' rows removed by lying about their own."""

from __future__ import annotations

from probekit.errors import CorruptError, MismatchError
from probekit.linear.design import ClientStats, Design
from probekit.linear.plausibility import implausible


def refuse_unsound(statistics: ClientStats, name: str, *, design: Design | None) -> ClientStats:
    """The same statistics, if some rows could have them and (where given) the design is right."""
    if design is not None and statistics.design != design:
        raise MismatchError(
            f"Client {name}'s statistics are of another design: {statistics.design}, this run has {design}. "
            "Compute them with the run's options."
        )
    why = implausible(statistics)
    if why:
        raise CorruptError(f"No rows have client {name}'s statistics: {why}. Ask the client again.")
    return statistics
