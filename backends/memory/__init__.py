"""Liveness, KV caches, and how many requests fit."""
