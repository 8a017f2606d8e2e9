"""Measured tables: a file for each, with its columns, and the small programs that its rows are."""
