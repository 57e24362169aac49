"""Unlearning methods, one file each. Importing this is enough to answer what they ask."""

from probekit.registry import METHODS

for _name in METHODS.built_in:
    METHODS.get(_name)
