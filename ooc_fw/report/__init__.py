"""Reports on runs: progress, logs and figures."""
