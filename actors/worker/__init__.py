"""The worker: obeys step plans on one device; read `actor`, then `device_thread`."""
