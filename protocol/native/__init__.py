"""The native dialect of `/v1/stream`, sans I/O. Read `session` for the server's side, `client` for the client's."""
