"""Capture: run a training command on emulated GPUs and keep one trace per rank."""

from maya.capture.launcher import capture
from maya.capture.manifest import Manifest, OutOfMemory, RankResult, read_manifest
from maya.capture.spec import CaptureSpec

__all__ = ["CaptureSpec", "Manifest", "OutOfMemory", "RankResult", "capture", "read_manifest"]
