"""What a program means: its ops in numpy, on one rank or on all in lockstep."""
