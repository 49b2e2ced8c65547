"""The scikit-learn face of the trainer: one estimator for each kind of problem."""

from ooc_fw.estimators.tasks import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR

__all__ = ["FrankWolfeOneClass", "FrankWolfeSVC", "FrankWolfeSVR"]
