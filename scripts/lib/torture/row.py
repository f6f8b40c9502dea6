"""A row of scripts/torture, and helpers that build its command."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A test of the reliability scorecard in its long form."""

    group: str
    identifier: str
    what: str
    asked: str
    minutes: float
    command: tuple
    environment: dict = field(default_factory=dict)
    # Tier 1 runs every night, within 80 minutes in all. Tier 2 runs in addition before a release.
    tier: int = 1


# Tests run in the whole workspace, so that each crate is built only once: with the features that all members together need.
TEST = ("cargo", "test", "--locked", "--workspace")


def end_to_end(name):
    """Returns the command of one end-to-end test."""
    return (*TEST, "--release", "--test", "e2e", name, "--", "--exact", "--include-ignored", "--nocapture")


def unit(name):
    """Returns the command of one test inside a library. It is a development build, because its assertions are part of the test."""
    return (*TEST, "--lib", name, "--", "--exact", "--nocapture")


def bench(*arguments):
    return ("scripts/lib/bench", "--release", *arguments)
