"""A row of scripts/torture, and the commands of rows."""

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
    # 1 is for every night and within 80 minutes in all; 2 is before a release, beside it.
    tier: int = 1


# Of the workspace, so that each crate is built once, with the features that all of it asks for.
TEST = ("cargo", "test", "--locked", "--workspace")


def end_to_end(name):
    """The command of one end-to-end test."""
    return (*TEST, "--release", "--test", "e2e", name, "--", "--exact", "--include-ignored", "--nocapture")


def unit(name):
    """The command of one test inside a library; in the development build, whose assertions are part of it."""
    return (*TEST, "--lib", name, "--", "--exact", "--nocapture")


def bench(*arguments):
    return ("scripts/lib/bench", "--release", *arguments)
