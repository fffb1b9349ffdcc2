"""The gpu device, on GPUs or in the emulator. Read `device` first."""
