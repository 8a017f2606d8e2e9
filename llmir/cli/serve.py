"""`llmir serve`: the interactive page, from a server on this machine."""

from __future__ import annotations

import click

from llmir.base.errors import InputError

from .command import command
from .options import Integer

PORT = 8765


@command("serve", "Serve the interactive page for every model and device.")
@click.option(
    "--port",
    type=Integer(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; addresses other than loopback need --token.",
)
@click.option(
    "--token",
    envvar="LLMIR_TOKEN",
    show_envvar=True,
    help="Secret that clients have to send: a browser once, as /?token=TOKEN, and a program as "
    "a bearer token.",
)
def serve(port: int, opens: bool, host: str, token: str | None) -> None:
    """Serve the page of `llmir report` for any model, device and split.

    The server listens on 127.0.0.1 until Ctrl+C. It writes no files, and opens no file that a client names.
    It needs `pip install llmir[serve]`.

    \b
    llmir serve --open
    llmir serve --host 0.0.0.0 --token "$(openssl rand -hex 16)"
    """
    try:
        from llmir.page_server import listener
    except ModuleNotFoundError as error:
        raise InputError(f"serve needs {error.name}: pip install llmir[serve]") from None
    listener.serve(host, port, token, opens=opens)
