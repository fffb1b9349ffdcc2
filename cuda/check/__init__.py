"""Whether this machine's devices do what they should: kernels against definitions, and speeds. Read `device` first."""
