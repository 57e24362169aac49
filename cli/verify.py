"""`probekit verify`: what a run says, computed again from its rows."""

from __future__ import annotations

from pathlib import Path

from probekit.cli.options import CodeFlags, argument, flag
from probekit.cli.output import CacheOutput


def verify(
    run: Path = argument("Folder of a run."),
    fingerprint: str | None = flag("Fingerprint of the run or of the state, as you noted it."),
    forgot: list[str] | None = flag(
        "What you asked to be forgotten; may be repeated.", metavar="client=X|sample=ID"
    ),
    within: float | None = flag("Accept a head so far from the minimum."),
    *,
    code: CodeFlags,
    output: CacheOutput,
) -> None:
    """Check a run against its rows: exit code 6 if anything is false, 7 if not all is shown."""
    from probekit.runs.verify import NOT_ATTESTED, WORDS, verify_run

    result = verify_run(
        run,
        cache=output.open_cache(during_erasure=True),
        fingerprint=fingerprint,
        forgot=forgot or (),
        within=within,
        progress=output.progress,
    )
    output.table(
        ("verdict", "claim"), [(WORDS[item.holds], item.claim) for item in result.findings]
    )
    output.warn(*result.notes)
    output.print(result.conclusion)
    output.print(NOT_ATTESTED)
    output.fields(
        {
            "digest of the head": result.head,
            "fingerprint of the run": result.fingerprint,
            "fingerprint of this state": result.state_fingerprint,
        }
    )
    output.result(result.to_dict(), exit_code=result.exit_code)
