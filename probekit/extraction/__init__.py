"""Encoding datasets, importing vectors, and finding the rows that a name or path means."""

from probekit.extraction.extract import ExtractOptions as ExtractOptions
