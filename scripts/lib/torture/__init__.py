"""The rows of scripts/torture, and the table of their outcomes."""

from . import bounds, builds, tunnels
from .outcome import FAILED, LONGEST_CELL, PASSED, Outcome, judge, table
from .row import Row

ROWS = tunnels.ROWS + bounds.ROWS + builds.ROWS

__all__ = ["FAILED", "LONGEST_CELL", "PASSED", "ROWS", "Outcome", "Row", "judge", "table"]
