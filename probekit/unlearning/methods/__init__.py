"""Unlearning methods: one file each."""
