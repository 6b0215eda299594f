"""The kvserve command: listen, load the model meanwhile, serve, and save every live session at the end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

import click
from click.core import ParameterSource

from .app import App, create_app
from .settings import ENVIRONMENT, Settings, read_settings
from .wire import Backend

log = logging.getLogger("kvserver")

FINE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def main() -> NoReturn:
    """Run kvserve and leave with its exit code; every refusal is one sentence on stderr."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("sanic").setLevel(logging.WARNING)
    try:
        settings = read_settings(sys.argv[1:])
    except click.ClickException as refusal:
        click.echo(f"kvserve: {sentence(refusal)}", err=True)
        sys.exit(USAGE)
    if isinstance(settings, int):
        sys.exit(settings)
    sys.exit(serve(settings, open_model))


def open_model(settings: Settings) -> Backend:
    """The engine, with the model of the settings. Takes its time."""
    from .driver import Driver  # late: torch is not needed to refuse an option
    from .loading import load

    return Driver(load(settings), settings)


def serve(settings: Settings, open_backend: Callable[[Settings], Backend]) -> int:
    """Serve until a signal comes; the exit code. `open_backend` runs in a thread beside it, while /health says loading."""
    try:
        listener = _listen(settings)
    except OSError as fault:
        log.error("cannot listen on %s:%d: %s; choose another --host or --port", settings.host, settings.port, fault)
        return FAILED
    app = create_app(settings)
    app.register_listener(_stop, "before_server_stop")
    log.info("listening on http://%s:%d", *listener.getsockname()[:2])
    threading.Thread(target=_load, args=(app, settings, open_backend), name="loader", daemon=True).start()
    app.run(sock=listener, single_process=True, motd=False, access_log=False)
    _hurry_on_interrupt()
    if app.ctx.backend is not None:
        app.ctx.backend.close()
    return FINE


def _load(app: App, settings: Settings, open_backend: Callable[[Settings], Backend]) -> None:
    """Without a model there is nothing to serve and nothing to save, so that a failure ends the process as it stands."""
    try:
        backend = open_backend(settings)
    except Exception as fault:
        log.error("the model cannot be loaded: %s", fault)
        log.debug("", exc_info=fault)
        os._exit(FAILED)
    log.info("ready: %s", backend.describe())
    app.ctx.backend = backend


async def _stop(app: App) -> None:
    """Let streams end properly. From here on a second SIGTERM changes nothing, and a second Ctrl-C ends it all."""
    _hurry_on_interrupt()
    if app.ctx.backend is not None:
        app.ctx.backend.stop()


def _hurry_on_interrupt() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    return socket.create_server((settings.host, settings.port), family=family)


def sentence(refusal: click.ClickException) -> str:
    """What is wrong, after the option it is wrong with and the environment variable it came from."""
    if not isinstance(refusal, click.BadParameter) or refusal.param is None:
        return refusal.format_message()
    name = refusal.param.name or ""
    variable = f"{ENVIRONMENT}_{name.upper()}"
    from_environment = refusal.ctx and refusal.ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    return f"--{name.replace('_', '-')}{f' ({variable})' if from_environment else ''}: {refusal.message}"
