"""A trained model: its record, file, predictions, votes, probabilities, certificate and export."""
