"""The rows of scripts/torture, and how their outcomes become a table."""

from . import bounds, builds, tunnels
from .outcome import FAILED, PASSED, Outcome, judge, table
from .row import Row

ROWS = tunnels.ROWS + bounds.ROWS + builds.ROWS

__all__ = ["FAILED", "PASSED", "ROWS", "Outcome", "Row", "judge", "table"]
