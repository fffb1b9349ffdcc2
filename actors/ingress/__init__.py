"""The ingress: sockets and pages for clients, one actor for the engine. Read `actor` first."""
