"""The pages of the web page: requests, middleware and templates."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web.pages.lists import Lists
    from cli.web.pages.middleware import AccessMiddleware, viewer
    from cli.web.pages.overview import Pages
    from cli.web.pages.responses import Site
    from cli.web.pages.session import SessionPages
    from cli.web.pages.timeline import TimePages
    from cli.web.pages.topics import TopicPages
    from cli.web.pages.why_page import WhyPage
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "lists": "Lists",
            "middleware": "AccessMiddleware viewer",
            "overview": "Pages",
            "session": "SessionPages",
            "responses": "Site",
            "timeline": "TimePages",
            "topics": "TopicPages",
            "why_page": "WhyPage",
        },
    )

__all__ = [
    "AccessMiddleware",
    "Lists",
    "Pages",
    "SessionPages",
    "Site",
    "TimePages",
    "TopicPages",
    "WhyPage",
    "viewer",
]
