"""What a run says of itself: progress, log, figures and page."""
