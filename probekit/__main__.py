"""`python -m probekit`."""

from probekit.cli.main import main

main()
