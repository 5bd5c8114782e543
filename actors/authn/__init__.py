"""Authentication: password files, JSON Web Tokens, certificates and the auth callout.

``backends`` contains the interface of a backend and the list of all backends.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.authn.backend_selection import LOCKED_OUT, BackendSelection
    from actors.authn.backends import make_backends
    from actors.authn.callout import Callout, CalloutMethod, CalloutOptions
    from actors.authn.credentials import (
        Authenticator,
        AuthResult,
        Credentials,
        Verdict,
        login_rank,
    )
    from actors.authn.enhanced import Challenge, Exchange, Outcome, Step, make_methods
    from actors.authn.jwt_keys import KeySet, load_keys
    from actors.authn.jwt_tokens import TokenOptions, Tokens
    from actors.authn.login_backoff import BackoffOptions, LoginBackoff, network
    from actors.authn.passwords import PasswordFile
    from actors.authn.stored import SCRAM_SHA_256
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "backends": "make_backends",
            "callout": "Callout CalloutMethod CalloutOptions",
            "backend_selection": "BackendSelection LOCKED_OUT",
            "credentials": "AuthResult Authenticator Credentials Verdict login_rank",
            "enhanced": "Challenge Exchange Outcome Step make_methods",
            "jwt_keys": "KeySet load_keys",
            "jwt_tokens": "TokenOptions Tokens",
            "login_backoff": "BackoffOptions LoginBackoff network",
            "passwords": "PasswordFile",
            "stored": "SCRAM_SHA_256",
        },
    )

__all__ = [
    "LOCKED_OUT",
    "SCRAM_SHA_256",
    "AuthResult",
    "Authenticator",
    "BackendSelection",
    "BackoffOptions",
    "Callout",
    "CalloutMethod",
    "CalloutOptions",
    "Challenge",
    "Credentials",
    "Exchange",
    "KeySet",
    "LoginBackoff",
    "Outcome",
    "PasswordFile",
    "Step",
    "TokenOptions",
    "Tokens",
    "Verdict",
    "load_keys",
    "login_rank",
    "make_backends",
    "make_methods",
    "network",
]
