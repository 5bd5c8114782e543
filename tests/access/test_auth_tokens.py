"""Tokens as passwords: their users, and the errors that invalidate them."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, HMACAlgorithm, OKPAlgorithm, RSAAlgorithm

from actors.access import jwt_keys
from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.jwt_keys import KeySet, TokenKeyError, load_keys, parse_keys
from actors.access.jwt_tokens import (
    MAX_TOKEN,
    BadToken,
    TokenOptions,
    Tokens,
    claimed_user,
    looks_like_token,
    read_token,
)

NOW = 1_700_000_000
SECRET = b"a secret of more than 32 bytes, known to two"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def public_pem(key: Any) -> bytes:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_key().public_bytes(serialization.Encoding.PEM, kind)
    return pem


def handles(**more: Any) -> dict[str, Any]:
    chosen = {"sub": "ann", "exp": NOW + 60, **more}
    return {name: value for name, value in chosen.items() if value is not None}


def token(key: Any = EC_KEY, algorithm: str = "ES256", **more: Any) -> bytes:
    header = more.pop("header", None)
    return jwt.encode(handles(**more), key, algorithm, header).encode()


def handmade(header: object, payload: object, signature: bytes = b"x") -> bytes:
    parts = (json.dumps(header).encode(), json.dumps(payload).encode(), signature)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


KEYS = parse_keys(public_pem(EC_KEY))
OPTIONS = TokenOptions(keys=KEYS)


def why(shown: bytes, now: int = NOW, **options: Any) -> str:
    """The reason why a token is refused."""
    with pytest.raises(BadToken) as caught:
        read_token(shown, TokenOptions(**{"keys": KEYS, **options}), now * 1000)
    return str(caught.value)


# --- what a token says


def test_a_token() -> None:
    assert read_token(token(), OPTIONS, NOW * 1000) == Verdict(
        AuthResult.ACCEPTED, "ann", expires_ms=(NOW + 60) * 1000
    )


def test_user_and_groups_from_other_claims() -> None:
    options = TokenOptions(
        keys=KEYS, user_claim="https://x.example/name", groups_claim="realm.roles"
    )
    shown = token(
        **{"https://x.example/name": "bob", "realm": {"roles": ["ops", "staff"]}, "groups": ["no"]}
    )
    verdict = read_token(shown, options, NOW * 1000)
    assert (verdict.user, verdict.groups) == ("bob", ("ops", "staff"))
    # The name as it stands goes before the path.
    verdict = read_token(
        token(**{"realm.roles": "one"}),
        TokenOptions(keys=KEYS, groups_claim="realm.roles"),
        NOW * 1000,
    )
    assert verdict.groups == ("one",)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"exp": None}, "never expires"),
        ({"exp": NOW}, "has expired"),
        ({"exp": NOW - 1}, "has expired"),
        ({"exp": True}, "exp is not a time"),
        ({"exp": "tomorrow"}, "exp is not a time"),
        ({"exp": [1]}, "exp is not a time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"nbf": {}}, "nbf is not a time"),
        ({"sub": None}, "contains no user"),
        ({"sub": ""}, "contains no user"),
        ({"sub": "a\0b"}, "contains no user"),
        ({"sub": "x" * 1025}, "contains no user"),
        ({"groups": {"a": 1}}, "groups are not a list"),
        ({"groups": ["a", 1]}, "groups are not a list"),
        ({"groups": ["a", ""]}, "groups are not a list"),
        ({"groups": ["a"] * 257}, "groups are not a list"),
        ({"aud": "broker"}, "another audience"),
        ({"aud": {"a": 1}}, "audience is wrong"),
    ],
)
def test_claims_that_are_refused(more: dict[str, Any], reason: str) -> None:
    assert reason in why(token(**more))


def test_times_within_the_leeway() -> None:
    shown = token(nbf=NOW + 30, iat=NOW + 29.5, exp=NOW + 0.5)
    assert read_token(shown, OPTIONS, NOW * 1000).expires_ms == NOW * 1000 + 500


def test_a_time_out_of_reach() -> None:
    assert read_token(token(exp=10**300), OPTIONS, NOW * 1000).expires_ms == 253_402_300_799_000
    assert why(handmade_signed({"sub": "ann", "exp": 10**400})) == "not a token"


def handmade_signed(payload: object) -> bytes:
    text = json.dumps(payload).encode()
    return jwt.api_jws.PyJWS().encode(text, EC_KEY, "ES256").encode()


@pytest.mark.parametrize("payload", [[], "ann", None, 7])
def test_a_payload_that_is_no_object(payload: object) -> None:
    assert why(handmade_signed(payload)) == "not a token"


def test_issuer() -> None:
    issuer = "https://issuer.example"
    options = TokenOptions(keys=KEYS, issuer=issuer)
    assert read_token(token(iss=issuer), options, NOW * 1000).user == "ann"
    for wrong in (None, "https://other.example", issuer + "/"):
        assert "another issuer" in why(token(iss=wrong), issuer=issuer)


def test_audience() -> None:
    options = TokenOptions(keys=KEYS, audience=("broker", "all"))
    for right in ("broker", ["x", "all"]):
        assert read_token(token(aud=right), options, NOW * 1000).user == "ann"
    for wrong in (None, "x", [], ["x", "y"]):
        assert "another audience" in why(token(aud=wrong), audience=("broker", "all"))


# --- signatures


def jwks(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def jwk(maker: Any, key: Any, **more: Any) -> dict[str, Any]:
    return {**json.loads(maker.to_jwk(key)), **more}


@pytest.mark.parametrize(
    ("key", "algorithm", "maker"),
    [
        (RSA_KEY, "RS256", RSAAlgorithm),
        (RSA_KEY, "PS512", RSAAlgorithm),
        (EC_KEY, "ES256", ECAlgorithm),
        (ec.generate_private_key(ec.SECP384R1()), "ES384", ECAlgorithm),
        (ec.generate_private_key(ec.SECP521R1()), "ES512", ECAlgorithm),
        (ec.generate_private_key(ec.SECP256K1()), "ES256K", ECAlgorithm),
        (ED_KEY, "EdDSA", OKPAlgorithm),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_kind_of_key(key: Any, algorithm: str, maker: Any) -> None:
    shown = token(key, algorithm)
    for keys in (public_pem(key), jwks(jwk(maker, key.public_key()))):
        options = TokenOptions(keys=parse_keys(keys))
        assert read_token(shown, options, NOW * 1000).user == "ann"
        assert why(shown[:-8] + b"A" * 8, keys=options.keys) == "the signature is wrong"


def test_a_secret() -> None:
    keys = parse_keys(jwks(jwk(HMACAlgorithm, SECRET)))
    assert read_token(token(SECRET, "HS256"), TokenOptions(keys=keys), NOW * 1000).user == "ann"
    assert why(token(SECRET + b"!", "HS256"), keys=keys) == "the signature is wrong"
    # 44 bytes are too few for the longer hashes.
    assert keys.keys[0].algorithms == {"HS256"}
    longer = parse_keys(jwks(jwk(HMACAlgorithm, SECRET * 2)))
    assert longer.keys[0].algorithms == {"HS256", "HS384", "HS512"}


def test_the_algorithm_follows_the_key() -> None:
    none = handmade({"alg": "none"}, handles(), b"")
    assert looks_like_token(none)
    assert "no key has" in why(none)
    # The public key, which everybody has, as the secret of HMAC.
    for known in (public_pem(EC_KEY), public_pem(EC_KEY).rstrip()):
        part = b".".join(handmade({"alg": "HS256"}, handles()).split(b".")[:2])
        signature = HMACAlgorithm(HMACAlgorithm.SHA256).sign(part, known)
        forged = part + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
        assert "no key has" in why(forged)
    assert "no key has" in why(token(RSA_KEY, "RS256"))
    assert "no key has" in why(handmade({"alg": "es256"}, handles()))


def test_keys_with_names() -> None:
    other = ec.generate_private_key(ec.SECP256R1())
    keys = parse_keys(
        jwks(
            jwk(ECAlgorithm, EC_KEY.public_key(), kid="one", alg="ES256"),
            jwk(ECAlgorithm, other.public_key(), kid="two"),
            jwk(RSAAlgorithm, RSA_KEY.public_key(), kid="rsa", alg="RS256"),
        )
    )
    options = TokenOptions(keys=keys)
    assert read_token(token(header={"kid": "one"}), options, NOW * 1000).user == "ann"
    assert read_token(token(other, header={"kid": "two"}), options, NOW * 1000).user == "ann"
    assert read_token(token(other), options, NOW * 1000).user == "ann"
    assert why(token(header={"kid": "two"}), keys=keys) == "the signature is wrong"
    assert "no key has" in why(token(header={"kid": "three"}), keys=keys)
    assert "no key has" in why(token(RSA_KEY, "RS512", header={"kid": "rsa"}), keys=keys)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "ES256", "crit": ["exp"]},
        {"alg": "ES256", "b64": False},
        {"alg": ["ES256"]},
        {"alg": None},
        {"kid": 7, "alg": "ES256"},
        {},
        [],
    ],
)
def test_headers_that_are_refused(header: Any) -> None:
    assert why(handmade(header, handles()))


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b"secret",
        b"eyJ.",
        b"eyJ..",
        b"eyJhbGciOiJFUzI1NiJ9",
        b"eyJhbGciOiJFUzI1NiJ9.e30",
        b"eyJhbGciOiJFUzI1NiJ9.e30.x.y",
        b"eyJhbGciOiJFUzI1NiJ9.e30.x\n",
        b"eyJhbGciOiJFUzI1NiJ9=.e30.x",
        b"\xff.e30.x",
        b"eyJ" + b"A" * 5000 + b".e30.x",
        b"e1t" + b"W1tb" * 1200 + b".e30.x",
        b"eyJhbGciOiJFUzI1NiJ9." + b"A" * MAX_TOKEN + b".x",
    ],
)
def test_invalid_tokens(shown: bytes) -> None:
    assert why(shown)


def test_the_shape_of_a_token() -> None:
    assert looks_like_token(token())
    assert looks_like_token(handmade({"alg": "ES256"}, {}))
    for other in (None, b"", b"secret", b"e.y.J", b"a.b.c", b"$argon2id$", token() + b"."):
        assert not looks_like_token(other)


# --- files of keys


def test_several_keys_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.pem"
    path.write_bytes(b"Our issuer's keys\n" + public_pem(RSA_KEY) + b"\n" + public_pem(ED_KEY))
    assert [max(key.algorithms) for key in load_keys(path).keys] == ["RS512", "EdDSA"]


@pytest.mark.system
def test_a_certificate_is_its_key(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(cert), "-subj", "/CN=issuer"]
    subprocess.run(command, check=True, capture_output=True)
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    options = TokenOptions(keys=load_keys(cert))
    assert read_token(token(private), options, NOW * 1000).user == "ann"
    with pytest.raises(TokenKeyError, match="contains a private key"):
        load_keys(key)


WEAK = rsa.generate_private_key(65537, 1024)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "neither a public key in PEM nor a JWKS"),
        (SECRET, "neither a public key in PEM nor a JWKS"),
        (b"{", "is not JSON"),
        (b"{}", 'lacks the list "keys"'),
        (jwks(), "contains no key"),
        (b'{"keys": [7]}', "key 1 is not a JSON object"),
        (jwks({"kty": "RSA", "n": "AQAB"}), "key 1 (RSA) cannot be read"),
        (jwks({"kty": "EC", "crv": "P-256", "x": 7, "y": []}), "key 1 (EC) cannot be read"),
        (jwks({"kty": "oct", "k": "c2hvcnQ"}), "has 5 bytes, it needs 32"),
        (jwks({"kty": "oct", "k": "AAAA" * 20, "kid": 7}), '"kid" and "alg" must be text'),
        (jwks(jwk(ECAlgorithm, EC_KEY)), "is a private key"),
        (jwks(jwk(ECAlgorithm, EC_KEY.public_key(), alg="HS256")), '"alg" does not fit'),
        (jwks(jwk(ECAlgorithm, EC_KEY.public_key(), use="enc")), "contains no key"),
        (jwks({"kty": "new", "x": 1}), "contains no key"),
        (public_pem(WEAK), "key 1 has 1024 bits, it needs 2048"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "cannot be read"),
        (public_pem(EC_KEY) * 101, "contains 101 keys"),
    ],
)
def test_keys_that_are_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(data)
    with pytest.raises(TokenKeyError) as caught:
        load_keys(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert caught.value.exit_code == 78


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenKeyError, match="cannot read keys for tokens: No such file"):
        load_keys(tmp_path / "none")
    (tmp_path / "large").write_bytes(bytes(2000))
    monkeypatch.setattr(jwt_keys, "MAX_FILE", 1000)
    with pytest.raises(TokenKeyError, match="is larger than"):
        load_keys(tmp_path / "large")


def test_unknown_keys_beside_ours_are_passed_over() -> None:
    ours = jwk(ECAlgorithm, EC_KEY.public_key())
    encryption = jwk(RSAAlgorithm, RSA_KEY.public_key(), alg="RSA-OAEP")
    keys = parse_keys(jwks({"kty": "new"}, {"no": "kty"}, encryption, ours))
    assert len(keys.keys) == 1


# --- the source


class Clock:
    ms = NOW * 1000

    def __call__(self) -> int:
        return self.ms


def login(shown: bytes | None, username: str | None = "ann") -> Credentials:
    return Credentials(username, shown, address="192.0.2.1")


@pytest.mark.parametrize(
    ("username", "user"), [("ann", "ann"), ("", "ann"), (None, "ann"), ("bob", None), ("Ann", None)]
)
async def test_the_user_name_must_be_the_tokens(username: str | None, user: str | None) -> None:
    tokens = Tokens(OPTIONS, Clock())
    verdict = await tokens.check(login(token(), username))
    assert verdict.user == user
    assert verdict.accepted is (user is not None)
    tokens.close()


async def test_a_token_is_remembered_until_it_expires() -> None:
    clock = Clock()
    tokens = Tokens(OPTIONS, clock)
    shown = token()
    assert tokens.check_now(login(shown)) is None
    verdict = await tokens.check(login(shown))
    assert tokens.check_now(login(shown)) == verdict
    assert tokens.check_now(login(shown, "bob")) is None
    clock.ms += 59_999
    assert tokens.check_now(login(shown)) == verdict
    clock.ms += 1
    assert tokens.check_now(login(shown)) is None
    assert (await tokens.check(login(shown))).reason == "the token has expired"
    tokens.close()


async def test_malformed_tokens_are_refused_without_verification_and_not_cached() -> None:
    tokens = Tokens(OPTIONS, Clock())
    for shown in (None, b"e" * (MAX_TOKEN + 1)):
        verdict = tokens.check_now(login(shown))
        assert verdict is not None
        assert verdict.result is AuthResult.BAD_CREDENTIALS
    wrong = token()[:-4] + b"AAAA"
    assert not (await tokens.check(login(wrong))).accepted
    assert tokens.check_now(login(wrong)) is None
    tokens.close()


def test_an_empty_key_set_takes_nothing() -> None:
    assert "no key has" in why(token(), keys=KeySet(()))


# --- what an unverified token claims


@pytest.mark.parametrize(
    ("shown", "user"),
    [
        (token(), "ann"),
        (token(exp=1), "ann"),
        (handmade({"alg": "none"}, {"sub": "eve"}), "eve"),
        (handmade({}, {"sub": "x" * 1024}), "x" * 1024),
        (handmade({}, {"sub": "x" * 1025}), ""),
        (handmade({}, {"sub": "x", "more": "y" * MAX_TOKEN}), ""),
        (handmade({}, {"sub": ["ann"]}), ""),
        (handmade({}, {"sub": "a\0b"}), ""),
        (handmade({}, {}), ""),
        (handmade({}, ["sub"]), ""),
        (b"eyJ9.A.x", ""),
        (b"eyJ9.!.x", ""),
        (b"eyJ9..", ""),
        (b"no token at all", ""),
        (b"", ""),
    ],
)
def test_the_user_that_a_token_claims(shown: bytes, user: str) -> None:
    assert claimed_user(shown, "sub") == user


def test_the_claimed_user_is_read_where_the_user_is() -> None:
    shown = handmade({}, {"sub": "id", "realm": {"name": "ann"}})
    tokens = Tokens(TokenOptions(keys=KEYS, user_claim="realm.name"), lambda: NOW * 1000)
    assert tokens.claimed_user(shown) == "ann"
    tokens.close()
