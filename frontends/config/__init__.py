"""Reader of a Hugging Face config: every field is read or refused."""
