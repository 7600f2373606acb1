"""Estimators: measured tables in, durations of recorded operations out."""

from maya.estimators.annotate import annotate
from maya.estimators.annotation import BASES, Annotation
from maya.estimators.estimator import Estimator, load_estimator
from maya.estimators.train import train

__all__ = ["BASES", "Annotation", "Estimator", "annotate", "load_estimator", "train"]
