"""Ways to reach clients: bytes in this process, statistics that were kept."""
