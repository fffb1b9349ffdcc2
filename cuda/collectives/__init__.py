"""Where the ranks of a group meet: each other's memory, and the sums made in it. Read `peer_memory`."""
