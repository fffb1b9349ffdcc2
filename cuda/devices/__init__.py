"""What executes a step plan. Read `device` (the seam), then `cpu`; `counting` proves schedules without a model."""
