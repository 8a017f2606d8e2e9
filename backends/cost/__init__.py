"""Cost models: what each op of a program takes on a device."""
