"""Many set-ups of a model: grids of steps, and what they show."""
