"""Kernels by op: the NumPy definitions (`reference`) and the compiled ones of each device. Arrays, never requests."""
