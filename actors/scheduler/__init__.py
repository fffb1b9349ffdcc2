"""The scheduler: decides every step; read `actor` (the shell), `scheduler`, then `step`."""
