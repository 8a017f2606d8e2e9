"""Compare two programs, and explain one figure."""
