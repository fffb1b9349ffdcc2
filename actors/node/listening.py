"""The node's TCP socket: bound before anything is loaded, handed down to the ingress, named in the ready line."""

import os
import socket

from actors.node.config import NodeConfig
from actors.node.settings import ConfigError

BACKLOG = 1024


def open_listener(config: NodeConfig) -> socket.socket:
    """Bind and listen on the configured address. Raises ConfigError when that cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise ConfigError(
            f"--host: {config.host} is no address of this machine: {error.strerror}; use 127.0.0.1"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        where = f"{config.host}:{config.port}"
        mend = "use another --port, or 0 for a free one"
        raise ConfigError(f"--port: cannot listen on {where}: {os.strerror(error.errno or 0)}; {mend}") from None
    return listener


def url_of(config: NodeConfig, listener: socket.socket) -> str:
    """Return the address that clients of this machine connect to."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 - compared, not bound
    scheme = "wss" if config.ssl_certfile else "ws"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
