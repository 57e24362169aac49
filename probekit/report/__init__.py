"""Reports: one HTML page about one run or several, from plain values."""
