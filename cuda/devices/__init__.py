"""What executes a step plan. Read `device` (the seam), then `gpu` or `cpu`; `counting` proves schedules, no model."""
