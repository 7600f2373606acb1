"""Collation: the traces of a run become one job (maya/collate/job.py)."""

from maya.collate.collate import collate
from maya.collate.files import read_job, write_job
from maya.collate.job import Communicator, Job, RankTrace

__all__ = ["Communicator", "Job", "RankTrace", "collate", "read_job", "write_job"]
