"""From data to a model: training of every task, probabilities, streams, choice of C and gamma."""
