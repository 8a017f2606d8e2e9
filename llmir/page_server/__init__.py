"""The HTTP server of `llmir serve`: the interactive page, with set-ups computed on request.

A request goes from `listener.py` (`serve`, the socket) through `guard.py` (`Guard`, who may send requests) to
`app.py` (`app`, the routes). `request.py` (`PageRequest`) checks the JSON of a request, and `worker.py`
(`Worker`) computes the answer in a process of its own with a time limit.

Start with `app.py`. Needs the optional dependencies `llmir[serve]`. May import every package except
`llmir.cli`.
"""
