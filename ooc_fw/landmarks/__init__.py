"""L2-SVMs in the span of landmarks: learned from all rows, with a gap that costs nothing more."""
