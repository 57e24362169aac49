"""Unlearning: a head without some clients or samples, exactly or as near as the kept material allows."""
