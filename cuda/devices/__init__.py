"""What executes a step plan. Read `device`, the seam, then `cuda.gpu` or `cuda.cpu`; `counting` has no model."""
