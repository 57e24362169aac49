"""Unlearning: requests, removals, methods and the choice among them."""
