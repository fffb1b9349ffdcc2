"""The command `python -m actors.node`: what starts, wires and supervises the actors. Read `__main__` first."""
