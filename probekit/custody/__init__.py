"""Signatures and, later, commitments: what binds a request, rows, statistics and a head."""
