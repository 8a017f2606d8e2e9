"""Errors, frozen values, argument checks, file readers and the registry; imports no other package."""
