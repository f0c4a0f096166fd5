"""The literature: every listed paper, and what covers it in this package."""

from grouprl.papers.rows import SCOPES, Listing, listing, listings
from grouprl.papers.status import STATUSES, Standing, counts, search, standing, standings

__all__ = [
    "SCOPES",
    "STATUSES",
    "Listing",
    "Standing",
    "counts",
    "listing",
    "listings",
    "search",
    "standing",
    "standings",
]
