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


def end_to_end(name):
    """The command of one end-to-end test."""
    test = ("cargo", "test", "--release", "--locked", "--package", "warren", "--test", "e2e")
    return (*test, name, "--", "--exact", "--include-ignored", "--nocapture")


def unit(package, name):
    """The command of one test inside a library; in the development build, whose assertions are part of it."""
    test = ("cargo", "test", "--locked", "--package", package, "--lib")
    return (*test, name, "--", "--exact", "--nocapture")


def bench(*arguments):
    return ("cargo", "run", "--release", "--locked", "--package", "warren-bench", "--", *arguments)
