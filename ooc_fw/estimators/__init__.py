"""The scikit-learn face of the trainer: one estimator for each kind of problem."""

from ooc_fw.estimators.svc import FrankWolfeSVC
from ooc_fw.estimators.tasks import FrankWolfeOneClass, FrankWolfeSVR

__all__ = ["FrankWolfeOneClass", "FrankWolfeSVC", "FrankWolfeSVR"]
