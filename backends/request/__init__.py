"""Many requests as engines run them: waves, and the steady step of a closed loop."""
