"""Training and measuring many clients at once."""
