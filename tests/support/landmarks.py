"""Landmark models of one C."""

from ooc_fw.landmarks.solve import LandmarkPath


def solve_landmarks(problem, n_landmarks, options, session, warm=None):
    """Solution of a model in the span of landmarks."""
    with LandmarkPath(problem, n_landmarks, options, session, warm) as path:
        return path.solve(options.C)
