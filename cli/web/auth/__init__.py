"""Tokens, roles and the audit trail of the web page."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web.auth import token_command
    from cli.web.auth.audit_trail import AuditTrail
    from cli.web.auth.own_token import TOKEN_FILE, Token, TokenError, cookie_of, find_token
    from cli.web.auth.token_audit import RECORDED_FILE, TokenAudit
    from cli.web.auth.tokens import TOKENS_FILE, BadTokens, Grant, Tokens, ends, read
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "audit_trail": "AuditTrail",
            "own_token": "TOKEN_FILE Token TokenError cookie_of find_token",
            "token_audit": "RECORDED_FILE TokenAudit",
            "token_command": "token_command",
            "tokens": "BadTokens Grant TOKENS_FILE Tokens ends read",
        },
    )

__all__ = [
    "RECORDED_FILE",
    "TOKENS_FILE",
    "TOKEN_FILE",
    "AuditTrail",
    "BadTokens",
    "Grant",
    "Token",
    "TokenAudit",
    "TokenError",
    "Tokens",
    "cookie_of",
    "ends",
    "find_token",
    "read",
    "token_command",
]
