"""The clients' devices: speed, availability, and what a round costs."""
