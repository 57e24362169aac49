"""The algebra of ridge least squares: statistics, solvers, paths."""
