"""What an op asks of a device, and the algorithms of collectives."""
