"""Charts of results by matplotlib, an optional dependency."""
