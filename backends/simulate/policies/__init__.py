"""The policies, a file each, named by their engine."""
