"""SCRAM-SHA-256: keys, messages, and unknown users."""

import base64
import contextlib

import pytest
from harness.scram import ScramClient
from hypothesis import given
from hypothesis import strategies as st

from actors.access import scram
from actors.access.passwords import PasswordFile
from actors.access.scram import (
    DummyKeys,
    ScramError,
    ScramExchange,
    ScramKeys,
    derive_keys,
    parse_scram_keys,
    read_client_first,
    render_keys,
    saslprep,
)

ARGON2 = "$argon2id$v=19$m=64,t=1,p=1$MTIzNDU2Nzg$MTIzNDU2Nzg5MDEyMzQ1Ng"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KEYS = derive_keys(b"pencil", 4096, SALT)
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
BOTH = NONCE + SERVER_NONCE
PROOF = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
FINAL = f"c=biws,r={BOTH},p={PROOF}".encode()


def exchange(first: bytes = f"n,,n=user,r={NONCE}".encode()) -> ScramExchange:
    return ScramExchange(read_client_first(first), KEYS, SERVER_NONCE)


def test_the_example_of_rfc_7677() -> None:
    found = exchange()
    assert found.challenge == f"r={BOTH},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    assert found.verify(FINAL) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("flag", ["n", "y"])
def test_both_sides_agree(flag: str) -> None:
    client = ScramClient("a,b=c", "süß", flag)
    found = ScramExchange(read_client_first(client.first), derive_keys("süß".encode(), 4096))
    assert read_client_first(client.first).user == "a,b=c"
    server_final = found.verify(client.final(found.challenge))
    assert client.trusts(server_final)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"", "malformed"),
        (b"n", "malformed"),
        (b"\xff,,n=user,r=x", "UTF-8"),
        (b"n,,n=user", "malformed"),
        (b"n,,r=x,n=user", "malformed"),
        (b"n,,n=user,r=", "malformed"),
        (b"n,,n=user,r=\xc3\xa4", "malformed"),
        (b"n,,n=user,r=a b", "malformed"),
        (b"n,,n=,r=x", "user name"),
        (b"n,,n=a=2c,r=x", "user name"),
        (b"n,,n=a=,r=x", "user name"),
        (b"n,,n=us\0er,r=x", "malformed"),
        (b"x,,n=user,r=x", "malformed"),
        (b"n,b=c,n=user,r=x", "malformed"),
        (b"n,,m=must,n=user,r=x", "malformed"),
        (b"n,,n=user,r=x,", "malformed"),
        (b"n,,n=user,r=x,1=y", "malformed"),
        (b"p=tls-unique,,n=user,r=x", "channel binding"),
        (b"p=tls-exporter,,n=user,r=x", "channel binding"),
        (b"n,a=root,n=user,r=x", "another user"),
        (b"n,,n=user,r=" + b"x" * 257, "longer than 256"),
        (b"n,,n=" + b"u" * 257 + b",r=x", "longer than 256"),
    ],
)
def test_first_messages_that_are_refused(first: bytes, says: str) -> None:
    with pytest.raises(ScramError, match=says):
        read_client_first(first)


def test_first_messages_that_are_accepted() -> None:
    assert read_client_first(b"n,a=user,n=user,r=x").header == b"n,a=user,"
    assert read_client_first(b"n,,n=user,r=x,z=9").bare == b"n=user,r=x,z=9"
    assert read_client_first(b"n,,n==2C=3D,r=x").user == ",="


@pytest.mark.parametrize(
    ("final", "says"),
    [
        (b"", "malformed"),
        (f"c=biws,r={BOTH}".encode(), "malformed"),
        (f"c=biws,r={BOTH},p=AAAA".encode(), "malformed"),
        (f"c=biws,r={BOTH},p=!".encode(), "malformed"),
        (f"c=!,r={BOTH},p={PROOF}".encode(), "malformed"),
        (f"c=eSws,r={BOTH},p={PROOF}".encode(), "channel binding"),
        (f"c=biws,r={NONCE},p={PROOF}".encode(), "nonce"),
        (f"c=biws,r={SERVER_NONCE},p={PROOF}".encode(), "nonce"),
        (f"c=biws,r={BOTH},x=1,p={PROOF}".encode(), "wrong user name or password"),
        (f"c=biws,r={BOTH},p={base64.b64encode(bytes(32)).decode()}".encode(), "wrong user"),
    ],
)
def test_last_messages_that_are_refused(final: bytes, says: str) -> None:
    with pytest.raises(ScramError, match=says):
        exchange().verify(final)


def test_the_flag_cannot_be_changed_on_the_way() -> None:
    """A client that could bind says y; if n comes in, its c= gives it away."""
    client = ScramClient("user", "pencil", "y", NONCE)
    found = exchange(client.first.replace(b"y,,", b"n,,", 1))
    with pytest.raises(ScramError, match="channel binding"):
        found.verify(client.final(found.challenge))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (read_client_first, exchange().verify):
        with contextlib.suppress(ScramError):
            read(data)


def test_keys_as_text() -> None:
    text = render_keys(KEYS)
    assert text.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert parse_scram_keys(text) == KEYS
    for wrong in (
        "",
        text[:-1],
        text + "=",
        text.replace("$4096", "$4095"),
        text.replace("$4096", "$10000001"),
        text.replace("SHA-256", "SHA-1"),
        text.replace("W22ZaJ0SNY7soEsUEjb6gQ==", "W22Z"),
    ):
        assert parse_scram_keys(wrong) is None


def test_passwords_are_prepared() -> None:
    assert saslprep("I\u00adX") == "IX"
    assert saslprep("\u00aa") == "a"
    assert saslprep("\u2168") == "IX"
    assert saslprep("a\u00a0b") == "a b"
    for wrong in ("\u0007", "\u0627\u0031", "a\ud800"):
        with pytest.raises(ValueError, match="it "):
            saslprep(wrong)
    same = derive_keys("Ⅸ".encode(), 4096, SALT)
    assert same == derive_keys(b"IX", 4096, SALT)
    for password in (b"\xff", b"\x07", "\u00ad".encode()):
        with pytest.raises(ValueError, match=r"it has|it is|SASLprep"):
            derive_keys(password)


# --- users of a file


def made(secret: bytes = b"s", **users: ScramKeys | None) -> PasswordFile:
    lines = {
        name: ARGON2 if keys is None else f"{ARGON2}:{render_keys(keys)}"
        for name, keys in users.items()
    }
    return PasswordFile(lines, decoy_secret=secret)


def test_users_without_keys_look_like_others() -> None:
    users = made(ann=KEYS, old=None)
    assert users.scram_user("ann").keys == KEYS
    unknown, old = users.scram_user("bob"), users.scram_user("old")
    for found in (unknown, old):
        assert found.keys.iterations == KEYS.iterations
        assert len(found.keys.salt) == len(KEYS.salt)
    assert unknown.keys.salt != old.keys.salt
    # The same after a restart and a reload, and another one in another broker.
    again = made(ann=KEYS, old=None, eve=KEYS)
    assert again.scram_user("bob").keys == unknown.keys
    assert made(b"other", ann=KEYS).scram_user("bob").keys.salt != unknown.keys.salt


def test_decoys_are_as_most_users_are() -> None:
    other = derive_keys(b"x", 5000, b"12345678")
    keys = made(a=KEYS, b=other, c=other).scram_user("nobody").keys
    assert (keys.iterations, len(keys.salt)) == (5000, 8)
    keys = made().scram_user("nobody").keys
    assert (keys.iterations, len(keys.salt)) == (scram.ITERATIONS, scram.SALT_SIZE)


def test_no_part_of_a_decoy_shows_another() -> None:
    keys = DummyKeys(b"s", 4096, 64).keys("bob")
    assert len(keys.salt) == 64
    assert keys.stored_key not in keys.salt
    assert keys.server_key not in keys.salt


def test_names_that_are_spelled_otherwise() -> None:
    names = dict.fromkeys(("Ⅸ", "\u017f", "s"), f"{ARGON2}:{render_keys(KEYS)}")
    users = PasswordFile(names)
    assert users.scram_user("IX").name == "Ⅸ"
    assert users.scram_user("Ⅸ").name == "Ⅸ"
    assert users.scram_user("s").name == "s", "a name that is there is nobody else's"
    # The spellings of a name that is unknown have one decoy, as those of one that is known.
    assert users.scram_user("\u2163").keys == users.scram_user("IV").keys
