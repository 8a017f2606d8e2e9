"""Published models by name: the config of each, and its parameter count."""
