"""Certificates: provable bounds on how far a head is from the minimum over its retained rows."""
