"""The scikit-learn interface: one estimator for each task."""

from ooc_fw.estimators.tasks import FrankWolfeOneClass, FrankWolfeSVC, FrankWolfeSVR

__all__ = ["FrankWolfeOneClass", "FrankWolfeSVC", "FrankWolfeSVR"]
