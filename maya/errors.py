"""Errors that users see: one text in three parts, what happened, where, and what to do."""


class MayaError(Exception):
    """Base of all errors that Maya raises on purpose; the command line prints its text alone."""


class ConfigError(MayaError):
    """A configuration key, value, option or file that cannot be used."""


class CaptureError(MayaError):
    """The training program, or the emulated device under it, did not run as asked."""


class TraceError(MayaError):
    """A trace file or manifest that is damaged, incomplete or of another version."""


class EstimatorError(MayaError):
    """Measured data or a trained estimator that is missing, damaged or does not fit."""


class SimulationError(MayaError):
    """Operations that can never run, as a collective that a rank does not reach."""
