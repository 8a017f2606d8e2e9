"""What is read off a program: costs, memory, reports, and their tables and pictures."""
