"""The scikit-learn face of the trainer: one estimator for each kind of problem."""

from ooc_fw.estimators.one_class import FrankWolfeOneClass
from ooc_fw.estimators.svc import FrankWolfeSVC
from ooc_fw.estimators.svr import FrankWolfeSVR

__all__ = ["FrankWolfeOneClass", "FrankWolfeSVC", "FrankWolfeSVR"]
