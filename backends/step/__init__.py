"""What is read off a program on a device: steps, requests, memory, and what differs between two."""
