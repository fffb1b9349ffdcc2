"""The load generator: `python -m client bench`. Read `run` first."""
