"""The history of a session for the web page, folded from the log in the background."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.web.history.background_fold import Folding, Histories
else:
    __getattr__ = front_door(
        __name__,
        {
            "background_fold": "Folding Histories",
        },
    )

__all__ = ["Folding", "Histories"]
