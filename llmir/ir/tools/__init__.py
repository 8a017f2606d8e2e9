"""Builder, text form, verifier, rewrites, pass pipelines and loops over graphs."""
