"""Every kernel of a device against its definition, as a list of cases. Read `gpu` first."""
