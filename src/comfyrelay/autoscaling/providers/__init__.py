"""Who makes machines: each a `MachineProvider`."""
