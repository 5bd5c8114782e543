"""Changes by operators on the web page: confirmed twice, and recorded with the token's name."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web.changes.change_pages import ChangePages
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "change_pages": "ChangePages",
        },
    )

__all__ = ["ChangePages"]
