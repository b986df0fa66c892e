"""The clients' devices: speed, availability, and the cost of a round."""
