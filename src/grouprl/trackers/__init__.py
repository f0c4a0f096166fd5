"""Trackers: other programs that show a run's metrics. `metrics.jsonl` stays the truth, trackers get copies of it."""

from grouprl.trackers.choice import TRACKERS, ChosenTracker, chosen_tracker
from grouprl.trackers.feed import Feed
from grouprl.trackers.listener import TrackerListener
from grouprl.trackers.tracker import TrackedRecord, TrackedRun, Tracker

__all__ = [
    "TRACKERS",
    "ChosenTracker",
    "Feed",
    "TrackedRecord",
    "TrackedRun",
    "Tracker",
    "TrackerListener",
    "chosen_tracker",
]
