"""`python -m probekit` is the command line."""

from probekit.cli.main import main

if __name__ == "__main__":
    main()
