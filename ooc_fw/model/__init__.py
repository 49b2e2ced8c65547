"""A trained model: its record and file, predictions, votes and probabilities."""
