"""Whether devices reach each other's memory: each pair proves it, then all sum together. Read `proof` first."""
