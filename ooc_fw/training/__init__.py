"""From data to a model: a classifier for each pair of classes, probabilities, C and gamma."""
