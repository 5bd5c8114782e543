"""SASLprep (RFC 4013): the form in which SCRAM compares user names and passwords."""

from __future__ import annotations

import stringprep
import unicodedata
from typing import Final

_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str:
    """Return the prepared form of a user name or password.

    Raises ValueError for characters that it cannot have. Characters that Unicode 3.2 does not
    assign are kept as they are, on both sides alike.
    """
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one
        for one in text
        if not stringprep.in_table_b1(one)
    )
    found = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if any(table(one) for one in found for table in _PROHIBITED):
        raise ValueError("it has characters that SASLprep prohibits")
    if any(map(stringprep.in_table_d1, found)) and (
        any(map(stringprep.in_table_d2, found))
        or not (stringprep.in_table_d1(found[0]) and stringprep.in_table_d1(found[-1]))
    ):
        raise ValueError("it mixes text from right to left with text from left to right")
    return found
