"""The CPU device. Read `device` first."""
