"""What happened to clients: counts for operators, which the broker does not use itself.

``ClientHistories`` holds them; ``add_to_history`` adds an event of the log to them.
"""

from projections.clients.client_history import ClientHistories, ClientHistory, decode_history
from projections.clients.history_fold import HISTORY_EVENTS, LONGEST_DENIED, add_to_history

__all__ = [
    "HISTORY_EVENTS",
    "LONGEST_DENIED",
    "ClientHistories",
    "ClientHistory",
    "add_to_history",
    "decode_history",
]
