"""The HTTP server of `llmir serve`: the interactive page, with configurations computed on request.

A request passes through `listener.py` (`serve`, the socket), `guard.py` (`Guard`, access control) and
`app.py` (`app`, the routes). `request.py` (`PageRequest`) checks the JSON of a request, and `worker.py`
(`Worker`) computes the response in a separate process with a time limit.

Start with `app.py`. Needs the optional dependencies `llmir[serve]`. May import every package except
`llmir.cli`.
"""
