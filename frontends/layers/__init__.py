"""What mixes tokens in a layer: each a spec that builds itself, and adds to hidden states."""
