"""What a run says of itself: progress, log and figures."""
