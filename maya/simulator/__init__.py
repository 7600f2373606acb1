"""Discrete-event simulation of a job: from durations of operations to times on a common clock."""

from maya.simulator.memory import write_memory
from maya.simulator.simulate import RankTimes, Simulation, simulate
from maya.simulator.summary import Summary, summarise, write_summary
from maya.simulator.timeline import timeline_rows, write_chrome_trace

__all__ = [
    "RankTimes",
    "Simulation",
    "Summary",
    "simulate",
    "summarise",
    "timeline_rows",
    "write_chrome_trace",
    "write_memory",
    "write_summary",
]
