"""Maya predicts time and memory of training programs by running them on an emulated GPU."""

__version__ = "0.1.0"
