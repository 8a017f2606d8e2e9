"""`llmir serve`: the page that computes, with every model, device and split within reach, on loopback."""
