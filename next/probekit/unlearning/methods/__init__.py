"""Ways to forget, one file each."""
