"""The Frank-Wolfe family on one binary problem: the outer loop, its state, steps and oracles."""
