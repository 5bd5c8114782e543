"""Tokens, roles and the audit trail of the web page."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.web.auth import token_command
    from cli.web.auth.audit_trail import Trail
    from cli.web.auth.own_token import TOKEN_FILE, Token, TokenError, cookie_of, find_token
    from cli.web.auth.tokens import TOKENS_FILE, BadTokens, Grant, Tokens, ends, read
else:
    __getattr__ = front_door(
        __name__,
        {
            "audit_trail": "Trail",
            "own_token": "TOKEN_FILE Token TokenError cookie_of find_token",
            "token_command": "token_command",
            "tokens": "BadTokens Grant TOKENS_FILE Tokens ends read",
        },
    )

__all__ = [
    "TOKENS_FILE",
    "TOKEN_FILE",
    "BadTokens",
    "Grant",
    "Token",
    "TokenError",
    "Tokens",
    "Trail",
    "cookie_of",
    "ends",
    "find_token",
    "read",
    "token_command",
]
