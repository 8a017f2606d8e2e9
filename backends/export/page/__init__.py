"""A page that computes what `llmir.workload` says, in the browser of whoever opens it."""
