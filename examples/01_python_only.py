"""A client plants a backdoor; it is found, forgotten and gone, and a reader can check that."""

from __future__ import annotations

from pathlib import Path

import probekit

FOLDER = Path("example")
DIGITS = "packaged:digits"
BACKBONE = "pixels:8"

# 1. One linear probe over all rows: what is there to gain?
print(probekit.probe(DIGITS, backbone=BACKBONE))

# 2. The same head across five clients, one of whom puts a white square on its digits and calls
#    them all "0". The server sees sums of rows, not rows.
run = probekit.train(
    DIGITS,
    backbone=BACKBONE,
    clients=5,
    poison="client=3,trigger=square:size=2,target=0",
    run=FOLDER / "run",
)
backdoor = run.evaluate().unlearning.heads["before"]["backdoor"]
print(f"a square makes a zero of {backdoor.value:.1%} of the other digits")

# 3. Whoever wants to check a later removal notes the fingerprint now, from a verification of
#    their own. It says what rows and options the run has, and reveals neither.
noted = run.verify()
assert noted.ok

# 4. Forget the client. The retained clients' sums are kept, so nobody is asked for anything.
done = run.unlearn(client="3")
certificate = done.certificate
assert certificate is not None
print(done.reason)
print("\n".join(certificate.statements))
print(f"noise that would hide the rest: {certificate.noise_for(epsilon=1, delta=1e-5):.1g}")

# 5. Check it against the rows: those of client 3 are out, no others are, and the head is the
#    minimum over those that are left.
checked = run.verify(fingerprint=noted.fingerprint, forgot="client=3")
print(checked.conclusion)
assert checked.ok

# 6. Compare with the head that never saw the client, and keep a page about it.
for name, head in run.evaluate().unlearning.heads.items():
    print(f"{name:9}  accuracy {head['test'].value:.1%}  backdoor {head['backdoor'].value:.1%}")
print(run.report(FOLDER / "report.html"))

# 7. Unlearning takes the client out of the head, erasing takes its rows off the disk.
print(run.erase(client="3").rows)
assert run.verify(forgot="client=3").ok
