"""Values only: what actors and clients say to each other, and both wire dialects as sans-I/O sessions."""
