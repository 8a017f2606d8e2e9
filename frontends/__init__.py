"""From a model's config to a program."""
