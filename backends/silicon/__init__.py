"""Times measured on real devices: their tables, fits to them, and predictions beside them."""
