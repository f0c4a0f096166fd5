"""The literature: every listed paper, and what covers it in this package."""

from grouprl.papers.paper_list import SCOPES, Listing, listing, listings
from grouprl.papers.status import STATUSES, Standing, counts, named, search, standing, standings, training_command

__all__ = [
    "SCOPES",
    "STATUSES",
    "Listing",
    "Standing",
    "counts",
    "listing",
    "listings",
    "named",
    "search",
    "standing",
    "standings",
    "training_command",
]
