"""Changes that operators make on the web page: asked twice, and recorded with the token's name."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.web.changes.change_pages import ChangePages
else:
    __getattr__ = front_door(
        __name__,
        {
            "change_pages": "ChangePages",
        },
    )

__all__ = ["ChangePages"]
