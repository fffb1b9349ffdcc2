"""Compiled CPU kernels. Read `program` first."""
