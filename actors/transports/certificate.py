"""The user in a client certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

IdentityKind = Literal["cn", "dns", "email", "uri", "dn"]

_ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Attribute names with a short form in RFC 4514 (3)."""


def identity(peercert: Mapping[str, Any] | None, kind: IdentityKind) -> str | None:
    """Return the user in a verified certificate, as ``ssl`` describes it, or None.

    ``cn`` is the common name of the subject, ``dn`` the whole subject as RFC 4514 writes it,
    ``dns``, ``email`` and ``uri`` the alternative name of that type. If there are several of a
    kind, or one with control characters, the user is ambiguous: None.
    """
    if not peercert:
        return None
    if kind == "dn":
        found = [_distinguished(peercert)]
    elif kind == "cn":
        found = [value for name, value in _subject(peercert) if name == "commonName"]
    else:
        wanted = _ALTERNATIVES[kind]
        found = [value for name, value in peercert.get("subjectAltName", ()) if name == wanted]
    if len(found) != 1 or not found[0] or not found[0].isprintable():
        return None
    return found[0]


def _subject(peercert: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in peercert.get("subject", ()):
        yield from part


def _distinguished(peercert: Mapping[str, Any]) -> str:
    """Write the subject with the most specific part first."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(peercert.get("subject", ()))
    )


def _escaped(value: str) -> str:
    """Escape special characters of a distinguished name (RFC 4514, 2.4)."""
    text = "".join(f"\\{char}" if char in ',+"\\<>;' else char for char in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1 and not text.endswith("\\ "):
        text = text[:-1] + "\\ "
    return text
